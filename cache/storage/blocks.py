"""Summaries of results as blocks, so that aggregates and lists don't read the results themselves.

Each append to a file adds one block of rows (an Arrow record batch) and one of curves. A result has
a serial number that is never reused. A block lists the serials that it supersedes (`dead`), so that
a replaced or removed result is excluded from every aggregate, even if a block still contains its
row or curve. Blocks have checksums over all their contents.

The magnitudes of a curve (`positions.document_magnitudes`) are stored in the same row. A block of
curves without signs stores one array for both, since they equal their magnitudes.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poslens.attribution.curves import positions
from poslens.attribution.curves.text_axis import over_text
from poslens.attribution.types import N_BINS, Array, Method, TextPair
from poslens.cache.keys import text_number

ROW = pa.schema(
    [
        ("offset", pa.int64()),
        ("dataset", pa.string()),
        ("pair", pa.string()),
        ("text", pa.int64()),
        ("language", pa.string()),
        ("domain", pa.string()),
        ("document_tokens", pa.int32()),
        ("tokens", pa.int32()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("characters", pa.int32()),
        ("score", pa.float32()),
        ("truncated", pa.bool_()),
        ("reason", pa.string()),
    ]
)
"""The summary of a result or a failure. Its serial is the block's `first` + `offset`;
`document_tokens` is the data set's token count, `tokens` the model's; `start` and `end` delimit the
evidence in characters, out of the document's `characters`. A failure has a `reason` and no
score."""

SMALL = 1024
"""Blocks with fewer rows than this are merged from time to time."""

LARGE = 1 << 16
"""Maximum number of rows of a merged block."""

MERGE_EVERY = 64
T = TypeVar("T")

Serials = NDArray[np.int64]


class DamagedBlock(Exception):
    """A block's bytes don't match its checksum."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows with their serials [n], and the serials that they supersede."""

    serials: Serials
    rows: pa.RecordBatch
    dead: Serials


@dataclass(frozen=True, slots=True)
class CurveRows:
    """Curves and magnitudes [n, 100] of results, by serial [n]. `magnitudes` is the same array as
    `curves` if these have no signs."""

    serials: Serials
    curves: Array
    magnitudes: Array

    def __len__(self) -> int:
        return len(self.serials)

    def at(self, places: slice | NDArray[Any]) -> CurveRows:
        """The rows at these indices."""
        curves = self.curves[places]
        same = self.magnitudes is self.curves
        return CurveRows(self.serials[places], curves, curves if same else self.magnitudes[places])


def curve_rows(
    serials: Sequence[int] | Serials,
    curves: Sequence[Array] | Array,
    magnitudes: Sequence[Array] | Array,
) -> CurveRows:
    """Rows for serials [n] with their curves [100] and magnitudes [100]."""
    values = np.asarray(curves, dtype=np.float32).reshape(-1, N_BINS)
    sizes = np.asarray(magnitudes, dtype=np.float32).reshape(-1, N_BINS)
    same = curves is magnitudes or np.array_equal(values, sizes, equal_nan=True)
    return CurveRows(np.asarray(serials, np.int64), values, values if same else sizes)


def pair_columns(pairs: Sequence[TextPair]) -> dict[str, list[Any]]:
    """The columns of `ROW` that describe a pair; for a failed pair, all columns except the
    reason."""
    spans = [pair.evidence for pair in pairs]
    nothing = [None] * len(pairs)
    return {
        "dataset": [pair.dataset for pair in pairs],
        "pair": [pair.pair_id for pair in pairs],
        "text": [text_number(pair) for pair in pairs],
        "language": [pair.language for pair in pairs],
        "domain": [pair.domain for pair in pairs],
        "document_tokens": [pair.document_tokens for pair in pairs],
        "tokens": nothing,
        "start": [span.start if span else None for span in spans],
        "end": [span.end if span else None for span in spans],
        "characters": [len(pair.document) for pair in pairs],
        "score": nothing,
        "truncated": [False] * len(pairs),
        "reason": nothing,
    }


def batch_of(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as a record batch, with offsets counted from 0."""
    return batch_of_columns({name: [row[name] for row in rows] for name in ROW.names[1:]})


def batch_of_columns(columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """Columns of `ROW` other than the offsets as a record batch, with offsets counted from 0."""
    n = len(columns["pair"])
    arrays = [pa.array(columns[name], ROW.field(name).type) for name in ROW.names[1:]]
    return pa.RecordBatch.from_arrays([pa.array(range(n), pa.int64()), *arrays], schema=ROW)


# -- writing: inside a transaction -----------------------------------------------------------------


def next_serial(db: sqlite3.Connection) -> int:
    """The first unused serial."""
    used = db.execute("SELECT max(id) FROM payload").fetchone()[0] or 0
    row = db.execute("SELECT next FROM block ORDER BY id DESC LIMIT 1").fetchone()
    return max(used + 1, row[0] if row else 1)


def append(
    db: sqlite3.Connection, first: int, rows: pa.RecordBatch, dead: Sequence[int] | Serials
) -> None:
    """Add a block of `rows`, with serials counted from `first`, that supersedes `dead`."""
    offsets = _numbers(rows.column(0), np.int64)
    past = first + int(offsets.max()) + 1 if len(offsets) else first
    if _write(db, rows, np.asarray(dead, np.int64), first, past) % MERGE_EVERY == 0:
        merge(db)


def append_curves(db: sqlite3.Connection, variant: int, rows: CurveRows) -> None:
    """Add curves of results under a variant."""
    if len(rows) and _write_curves(db, variant, rows) % MERGE_EVERY == 0:
        merge_curves(db)


def _next_id(db: sqlite3.Connection, table: str) -> int:
    """An id greater than all others. Blocks are inserted before the blocks they replace are
    deleted, so no id is reused, and a reader needs only the ids above the last one it has read."""
    return (db.execute(f"SELECT max(id) FROM {table}").fetchone()[0] or 0) + 1


def remove(db: sqlite3.Connection, serials: Sequence[int]) -> None:
    """Remove results, so that they count as missing again."""
    if serials:
        db.executemany("DELETE FROM payload WHERE id = ?", [(serial,) for serial in serials])
        append(db, next_serial(db), batch_of([]), serials)


def merge(db: sqlite3.Connection) -> None:
    """Merge all small blocks into one; damaged blocks are not touched."""
    blocks = _whole(read_blocks(db, where=f"n < {SMALL}"))
    if len(blocks) > 1:
        dead = np.unique(np.concatenate([block.dead for block in blocks.values()]))
        # Superseded rows may be in other blocks, so the list is kept.
        _write(db, _rows(blocks.values(), dead), dead)
        db.executemany("DELETE FROM block WHERE id = ?", [(block,) for block in blocks])


def merge_all(db: sqlite3.Connection) -> None:
    """Rewrite all blocks without superseded rows and without curves of other versions. The caller
    must then give the file a new epoch."""
    blocks = _whole(read_blocks(db))
    if not blocks:
        return
    dead = np.unique(np.concatenate([block.dead for block in blocks.values()]))
    rows = _rows(blocks.values(), dead)
    for start in range(0, max(rows.num_rows, 1), LARGE):
        _write(db, rows.slice(start, LARGE), np.zeros(0, np.int64))
    db.executemany("DELETE FROM block WHERE id = ?", [(block,) for block in blocks])
    live = _numbers(rows.column(0), np.int64)
    for params, variant in variants(db).items():
        if not is_current(params):
            db.execute("DELETE FROM curve WHERE variant = ?", (variant,))
            db.execute("DELETE FROM variant WHERE id = ?", (variant,))
            continue
        parts = _whole(read_curves(db, variant))
        joined = _joined(parts.values())
        joined = joined.at(np.isin(joined.serials, live))
        for start in range(0, len(joined), LARGE):
            _write_curves(db, variant, joined.at(slice(start, start + LARGE)))
        db.executemany("DELETE FROM curve WHERE id = ?", [(part,) for part in parts])


def _whole(found: Iterable[tuple[int, T | None]]) -> dict[int, T]:
    return {known: part for known, part in found if part is not None}


def _rows(blocks: Iterable[Block], dead: Serials) -> pa.RecordBatch:
    """The rows of blocks that are not superseded, with their serials as offsets."""
    parts = [with_offsets(block.rows, block.serials) for block in blocks]
    rows = pa.Table.from_batches(parts, ROW).combine_chunks().to_batches()
    joined = rows[0] if rows else batch_of([])
    keep = ~np.isin(_numbers(joined.column(0), np.int64), dead)
    return joined if keep.all() else joined.filter(pa.array(keep))


def with_offsets(rows: pa.RecordBatch, offsets: Serials) -> pa.RecordBatch:
    """Rows with these offsets [n]."""
    return pa.RecordBatch.from_arrays(
        [pa.array(offsets, pa.int64()), *rows.columns[1:]], schema=ROW
    )


def _write(
    db: sqlite3.Connection, rows: pa.RecordBatch, dead: Serials, first: int = 0, free: int = 0
) -> int:
    gone, data = np.asarray(dead, "<i8").tobytes(), rows.serialize().to_pybytes()
    known, n = _next_id(db, "block"), rows.num_rows
    db.execute(
        "INSERT INTO block VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            known,
            first,
            n,
            max(free, next_serial(db)),
            _rows_checksum(first, n, gone, data),
            gone,
            data,
        ),
    )
    return known


def _joined(parts: Iterable[CurveRows]) -> CurveRows:
    """Curves of several blocks, sorted by serial; a curve that two processes derived at once is
    included once."""
    listed = list(parts)
    serials, places = np.unique(
        np.concatenate([np.zeros(0, np.int64), *(part.serials for part in listed)]),
        return_index=True,
    )
    empty = np.zeros((0, N_BINS), np.float32)
    curves = np.concatenate([empty, *(part.curves for part in listed)])[places]
    if all(part.magnitudes is part.curves for part in listed):
        return CurveRows(serials, curves, curves)
    return CurveRows(
        serials, curves, np.concatenate([empty, *(part.magnitudes for part in listed)])[places]
    )


def _write_curves(db: sqlite3.Connection, variant: int, rows: CurveRows) -> int:
    parts = [np.asarray(rows.serials, "<i8"), np.ascontiguousarray(rows.curves, "<f4")]
    if rows.magnitudes is not rows.curves:
        parts.append(np.ascontiguousarray(rows.magnitudes, "<f4"))
    data = b"".join(part.tobytes() for part in parts)
    known = _next_id(db, "curve")
    db.execute(
        "INSERT INTO curve VALUES (?, ?, ?, ?, ?)",
        (known, variant, len(rows), _curves_checksum(variant, data), data),
    )
    return known


def merge_curves(db: sqlite3.Connection) -> None:
    """Merge a variant's small curve blocks into one."""
    for variant in variants(db).values():
        curve_rows = _whole(read_curves(db, variant, where=f"n < {SMALL}"))
        if len(curve_rows) > 1:
            _write_curves(db, variant, _joined(curve_rows.values()))
            db.executemany(
                "DELETE FROM curve WHERE id = ?", [(curve_row,) for curve_row in curve_rows]
            )


# -- reading ---------------------------------------------------------------------------------------


def read_blocks(
    db: sqlite3.Connection, after: int = 0, where: str = "1"
) -> Iterator[tuple[int, Block | None]]:
    """Yield id and content of each block with an id above `after`, oldest first; None if it is
    damaged."""
    rows = db.execute(
        "SELECT id, first, n, checksum, dead, data FROM block "
        f"WHERE id > ? AND {where} ORDER BY id",
        (after,),
    )
    for known, first, n, checksum, dead, data in rows:
        try:
            yield known, _block(first, n, checksum, dead, data)
        except DamagedBlock:
            yield known, None


def _block(first: int, n: int, checksum: int, dead: bytes, data: bytes) -> Block:
    if not (isinstance(dead, bytes) and isinstance(data, bytes)) or checksum != _rows_checksum(
        first, n, dead, data
    ):
        raise DamagedBlock
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(data), ROW)
    except (pa.ArrowException, OSError) as error:
        raise DamagedBlock from error
    return Block(_numbers(rows.column(0), np.int64) + first, rows, np.frombuffer(dead, "<i8"))


def read_curves(
    db: sqlite3.Connection, variant: int, after: int = 0, where: str = "1"
) -> Iterator[tuple[int, CurveRows | None]]:
    """Yield id and rows of each curve block of a variant with an id above `after`; None if it is
    damaged."""
    for known, n, checksum, data in db.execute(
        f"SELECT id, n, checksum, data FROM curve WHERE id > ? AND variant = ? AND {where} "
        "ORDER BY id",
        (after, variant),
    ):
        sizes = [n * (8 + 4 * N_BINS * kinds) for kinds in (1, 2)]
        if (
            not isinstance(data, bytes)
            or len(data) not in sizes
            or checksum != _curves_checksum(variant, data)
        ):
            yield known, None
            continue
        values = np.frombuffer(data, "<f4", offset=8 * n).reshape(-1, n, N_BINS)
        # One array for both if the block stores only one.
        curves = values[0]
        magnitudes = values[1] if len(values) == 2 else curves
        yield known, CurveRows(np.frombuffer(data, "<i8", n), curves, magnitudes)


def _numbers(column: pa.Array, dtype: type) -> NDArray[Any]:
    """A column without nulls as a numpy array, without a copy."""
    if not len(column):
        return np.zeros(0, dtype)
    buffer = column.buffers()[1]
    return np.frombuffer(buffer, dtype, len(column), column.offset * np.dtype(dtype).itemsize)


def numbers(column: pa.Array, missing: float) -> NDArray[Any]:
    """A column of numbers or flags as a numpy array, with `missing` in place of nulls."""
    filled = column.fill_null(missing) if column.null_count else column
    values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _rows_checksum(first: int, n: int, dead: bytes, data: bytes) -> int:
    head = np.array([first, n, len(dead)], "<i8").tobytes()
    return zlib.crc32(data, zlib.crc32(dead, zlib.crc32(head)))


_WIDTH = 512


def _curves_checksum(variant: int, data: bytes) -> int:
    """A checksum of the bytes as a table of 64-bit words: the CRC of the sums of its rows and
    columns. It detects a changed byte as reliably as a CRC of all bytes (one changed word changes
    two sums) in a third of the time, which dominates the reading of curves."""
    whole = len(data) // (8 * _WIDTH) * (8 * _WIDTH)
    words = np.frombuffer(data, np.uint64, whole // 8).reshape(-1, _WIDTH)
    check = zlib.crc32(data[whole:], variant)
    return zlib.crc32(words.sum(0).tobytes(), zlib.crc32(words.sum(1).tobytes(), check))


def variants(db: sqlite3.Connection) -> dict[str, int]:
    """Curve variants in the file: their numbers by their parameters as JSON."""
    return {params: known for known, params in db.execute("SELECT id, params FROM variant")}


def variant_params(method: Method) -> str:
    """The parameters that determine the method's curve, as JSON."""
    return json.dumps(dict(method.curve_params))


def is_current(params: str) -> bool:
    """Whether a variant's parameters are those of the current version. Other variants, from an
    import or an earlier version, are never requested."""
    methods = (
        Method("", {}, positions.curve_params(normalization, resampling))
        for normalization in positions.NORMALIZATIONS
        for resampling in positions.RESAMPLINGS
    )
    return any(
        params in (variant_params(method), variant_params(over_text(method))) for method in methods
    )


def variant_number(db: sqlite3.Connection, params: str) -> int:
    """The number of a curve variant, assigned if it has none."""
    known = variants(db).get(params)
    if known is None:
        known = db.execute("INSERT INTO variant (params) VALUES (?)", (params,)).lastrowid
    return known or 0


def dataset_number(db: sqlite3.Connection, name: str) -> int:
    """The data set's number, assigned if it has none."""
    row = db.execute("SELECT id FROM dataset WHERE name = ?", (name,)).fetchone()
    if row is None:
        return db.execute("INSERT INTO dataset (name) VALUES (?)", (name,)).lastrowid or 0
    serial: int = row[0]
    return serial


def covered(blocks: Iterable[Block]) -> set[int]:
    """The serials that have a row in any of the blocks."""
    return {int(serial) for block in blocks for serial in block.serials}
