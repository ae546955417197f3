"""Self-describing Parquet files of results with checksums.

A file contains rows of one or several models and methods. Its schema metadata lists them under
`poslens`, with the source of each model. `poslens.seal` in the footer contains the checksums of
that text and of all bytes before the footer, and every page has its own checksum. Any Parquet
reader opens the file: the columns contain what an analysis needs, and `payload` restores each
result bit for bit.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from poslens.attribution.damage import translate_damage
from poslens.attribution.errors import UserError, printable
from poslens.attribution.types import Method
from poslens.cache.storage.files import ModelKey
from poslens.cache.storage.rows import ROW

FORMAT = 2
"""Version of the file format; version 1 had no magnitudes of curves."""
FILE = pa.schema(
    [("model", pa.string()), ("fingerprint", pa.string()), ("method", pa.string()), *ROW]
)
_UNRANKED = ("payload", "curve", "magnitudes")
_FORMER = pa.schema([field for field in FILE if field.name != "magnitudes"])

_SAYS, _SEAL = b"poslens", b"poslens.seal"
_CHUNK = 1 << 20
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_METHOD = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_NAME = 200
_MAX_TEXT = 5000
_MAX_VALUES = 100
_MAX_ROWS = 100_000
# Results are compressed already, so only a malicious file expands to many times its size.
_FLOOR, _MAX_RATIO = 64 << 20, 20
_GROUP = 64 << 20
_SMALL_LEVEL = 19


@dataclass(frozen=True, slots=True)
class RowSource:
    """The model and method that a row belongs to; the method has no curve parameters."""

    model: ModelKey
    method: Method

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the source within a file."""
        return self.model.fingerprint, self.method.core


class _Hashing(io.RawIOBase):
    """A binary stream that computes a checksum of the bytes written to it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.n = 0
        self._abandoned = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self._abandoned:
            self._stream.write(data)
        self.digest.update(data)
        self.n += len(data)
        return len(data)

    def tell(self) -> int:
        return self.n

    def abandon(self) -> None:
        """Discard everything written from now on."""
        self._abandoned = True


class SealedWriter:
    """Writes rows to `stream`, which stays open; leaving the context appends the footer with the
    checksums. `poslens` is the version of this program. With `small`, the rows of a group are
    compressed together at a higher compression level."""

    def __init__(
        self, stream: BinaryIO, sources: Sequence[RowSource], poslens: str, *, small: bool = False
    ) -> None:
        self._hashing = _Hashing(stream)
        self._sink = pa.PythonFile(self._hashing, mode="w")
        self._says = json.dumps(
            {
                "format": FORMAT,
                "poslens": poslens,
                "sources": [_described(source) for source in sources],
            },
            ensure_ascii=False,
        ).encode()
        self._writer = pq.ParquetWriter(
            self._sink,
            FILE.with_metadata({_SAYS: self._says}),
            compression="zstd",
            compression_level=_SMALL_LEVEL if small else None,
            data_page_size=_GROUP if small else None,
            write_page_checksum=True,
            use_dictionary=[name for name in FILE.names if FILE.field(name).type == pa.string()],
            write_statistics=[name for name in FILE.names if name not in _UNRANKED],
        )
        self.rows = 0

    def write(self, source: RowSource, rows: pa.RecordBatch) -> None:
        """Add rows (schema ROW) of one source as a row group."""
        if not rows.num_rows:
            return
        described = (source.model.name, source.model.fingerprint, source.method.core)
        columns = [pa.repeat(pa.scalar(value), rows.num_rows) for value in described]
        table = pa.Table.from_arrays([*columns, *rows.columns], schema=self._writer.schema)
        # Row groups are read whole, and matrices would make them large.
        size = max(1, rows.num_rows * _GROUP // max(rows.nbytes, 1))
        self._writer.write_table(table, row_group_size=min(size, _MAX_ROWS))
        self.rows += rows.num_rows

    def __enter__(self) -> SealedWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            # The Parquet writer completes its file even after an error; discard what it writes.
            self._hashing.abandon()
            self._writer.close()
            return
        seal = {
            "says": hashlib.sha256(self._says).hexdigest(),
            "rows": self.rows,
            "bytes": self._hashing.n,
            "sha256": self._hashing.digest.hexdigest(),
        }
        self._writer.add_key_value_metadata({_SEAL.decode(): json.dumps(seal)})
        self._writer.close()


def _described(source: RowSource) -> dict[str, Any]:
    model, method = source.model, source.method
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "about": json.loads(model.about or "{}"),
        "method": [method.name, dict(method.params)],
        "core": method.core,
    }


class Sealed:
    """An open file of `size` bytes: its sources and its rows."""

    def __init__(
        self, file: pq.ParquetFile, says: dict[str, Any], rows: int, size: int, name: str
    ) -> None:
        self._file, self._name, self.rows = file, name, rows
        self._limit = max(_FLOOR, _MAX_RATIO * size)
        self.poslens = str(says["poslens"])
        self.sources = tuple(_source(each) for each in says["sources"])

    def batches(self) -> Iterator[tuple[RowSource, pa.RecordBatch]]:
        """Yield rows (schema ROW) of one source at a time.

        Raises:
            UserError: a part of the file is damaged.
        """
        row_sources = {source.key: source for source in self.sources}
        seen = 0
        for number in range(self._file.num_row_groups):
            with translate_damage(damaged(self._name)):
                group = self._file.metadata.row_group(number)
                if group.num_rows > _MAX_ROWS or group.total_byte_size > self._limit:
                    raise UserError(damaged(self._name))
                table = _of_today(self._file.read_row_group(number))
                if table.nbytes > self._limit:
                    raise UserError(damaged(self._name))
                (key,) = {
                    *zip(
                        table["fingerprint"].unique().to_pylist(),
                        table["method"].unique().to_pylist(),
                        strict=True,
                    )
                }
                source = row_sources[key]
                parts = table.select(ROW.names).combine_chunks().to_batches()
            for part in parts:
                seen += part.num_rows
                yield source, part
        if seen != self.rows:
            raise UserError(damaged(self._name))


@contextmanager
def opened(stream: BinaryIO, name: str) -> Iterator[Sealed]:
    """Open the file in `stream` (seekable); `name` is its name in error messages.

    Raises:
        UserError: the file is damaged, of another program, or of a newer version.
    """
    with translate_damage(damaged(name)):
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"), page_checksum_verification=True)
        metadata = file.metadata.metadata or {}
        foreign = UserError(
            f"{name} is not a file that PosLens exported: use a file from `cache export` or the "
            "Storage page."
        )
        if _SAYS not in metadata or _SEAL not in metadata:
            raise foreign
        seal, says = json.loads(metadata[_SEAL]), metadata[_SAYS]
        if hashlib.sha256(says).hexdigest() != seal["says"]:
            raise UserError(damaged(name))
        header = json.loads(says)
        if header["format"] > FORMAT:
            raise UserError(f"{name} was written by a newer PosLens: update this one to read it.")
        if not file.schema_arrow.remove_metadata().equals(
            _FORMER if header["format"] == 1 else FILE
        ):
            raise foreign
        size = stream.seek(0, 2)
        stream.seek(size - 8)
        footer = int.from_bytes(stream.read(4), "little")
        if seal["bytes"] + footer + 8 != size or seal["sha256"] != _digest(stream, seal["bytes"]):
            raise UserError(damaged(name))
        sealed = Sealed(file, header, seal["rows"], size, name)
    yield sealed


def _of_today(table: pa.Table) -> pa.Table:
    """Rows of an older format, converted to the current columns."""
    if "magnitudes" not in table.column_names:
        kind = FILE.field("magnitudes").type
        table = table.append_column("magnitudes", pa.nulls(table.num_rows, kind))
    return table.select(FILE.names).cast(FILE)


def _digest(stream: BinaryIO, n: int) -> str:
    digest = hashlib.sha256()
    stream.seek(0)
    while n:
        part = stream.read(min(n, _CHUNK))
        if not part:
            break
        digest.update(part)
        n -= len(part)
    return digest.hexdigest()


def _source(entry: dict[str, Any]) -> RowSource:
    name, params = entry["method"]
    method = Method(name, params)
    model, fingerprint = entry["model"], entry["fingerprint"]
    # Both are used as file names.
    if not _METHOD.fullmatch(name) or not _FINGERPRINT.fullmatch(fingerprint):
        raise ValueError("not a name that PosLens gives")
    if not isinstance(model, str) or not 0 < len(model) <= _MAX_NAME or not model.isprintable():
        raise ValueError("not a model's name")
    if method.core != entry["core"] or not are_plain(params):
        raise ValueError("not a method's parameters")
    if not are_plain(entry["about"], nested=True):
        raise ValueError("not a description of a model")
    about = json.dumps(entry["about"], ensure_ascii=False) if entry["about"] else ""
    return RowSource(ModelKey(model, fingerprint, about), method)


def are_plain(values: object, *, nested: bool = False) -> bool:
    """Whether these are a few named values, each a string, a finite number, a Boolean or null; with
    `nested`, values may also be such objects, one level deep."""
    if not isinstance(values, dict) or len(values) > _MAX_VALUES:
        return False
    return all(
        _is_plain(name) and (_is_plain(value) or (nested and are_plain(value)))
        for name, value in values.items()
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT and printable(value) == value
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and abs(value) < 2**31)


def damaged(name: str) -> str:
    """The error message for a file of this name."""
    return f"{name} is damaged or not a Parquet file: copy or export it again."
