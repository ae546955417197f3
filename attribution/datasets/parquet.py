"""Rows of Parquet files. A damaged file can crash the process that reads it, so a child process
reads it first."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from poslens.attribution import isolated
from poslens.attribution.damage import translate_damage
from poslens.attribution.datasets.schema import (
    NOT_UTF8,
    Column,
    Row,
    checked_columns,
    column_name,
    names_of,
    required_names,
)
from poslens.attribution.datasets.streams import MEGABYTE, File, open_bytes
from poslens.attribution.errors import UserError
from poslens.attribution.paths import FileState, file_state

_SHIPPED = Path(__file__).resolve().parent / "sample"  # a checkout has a link to this package
_MAX_MEMORY = 4 << 30
_MAX_BATCH = 1 << 30
_MAX_LIST = 16
_MAX_SURVIVED = 4096
_VIEWS = (pa.string_view(), pa.binary_view())


def rows(file: File, columns: Sequence[Column[Any]], limit: int | None) -> Iterator[Row]:
    """The given columns of each row of a Parquet file. An upload has a `limit` of unpacked bytes
    and is read in a child process.

    Raises:
        UserError: a required column is missing, a column that is read occurs twice, or the file is
            damaged or too large.
    """
    needed, selected = required_names(columns), names_of(columns)
    if limit is None:
        require_readable([(file, selected)])
        yield from _rows_in_process(file, needed, selected, None)
        return
    with open_bytes(file, limit) as stream:
        data = stream.read()
    answer = isolated.call(
        uploaded_rows,
        [file.name, needed, selected, limit],
        data,
        damaged=_damaged(file.name),
        limits=isolated.Limits(answer=2 * limit + MEGABYTE),
    )
    for line in io.BytesIO(answer):
        yield Row(*json.loads(line))


def uploaded_rows(
    data: bytes, name: str, needed: list[list[str]], selected: list[str], limit: int
) -> Iterator[bytes]:
    """Rows of an uploaded Parquet file as lines of JSON; runs in the child process of `rows`.

    Raises:
        UserError: as `rows`.
    """
    left = 2 * limit
    for row in _rows_in_process(File(name, data), needed, selected, limit):
        line = json.dumps([row.number, row.cells, row.problem], ensure_ascii=False)
        encoded = line.encode("utf-8", "surrogatepass") + b"\n"
        left -= len(encoded)
        if left < 0:
            raise _too_large(name, limit)
        yield encoded


def columns_of(file: File) -> tuple[str, ...]:
    """Normalized names of a Parquet file's columns; empty if it cannot be read. A child process
    reads them, once for each state of the file."""
    if not isinstance(file.content, Path):
        return ()
    try:
        state = file_state(file.content.resolve())
    except OSError:
        return ()
    return _columns_of(file.name, state)


@lru_cache(maxsize=256)
def _columns_of(name: str, state: FileState) -> tuple[str, ...]:
    place = state[0]
    try:
        answer = isolated.call(named_columns, [name, place], damaged=_damaged(name))
    except UserError:
        return ()
    return tuple(json.loads(answer))


def named_columns(data: bytes, name: str, path: str) -> Iterator[bytes]:
    """Column names of a file on disk as JSON; runs in the child process of `columns_of`.

    Raises:
        UserError: it is not a Parquet file.
    """
    with translate_damage(_damaged(name)), File(name, Path(path)).open() as raw:
        names = [column_name(column) for column in pq.ParquetFile(raw).schema_arrow.names]
        yield json.dumps(names).encode()


_survived: set[tuple[FileState, frozenset[str]]] = set()
"""Files, and their columns that a child process decoded without crashing."""


def require_readable(files: Sequence[tuple[File, Sequence[str]]]) -> None:
    """Check that columns of files on disk can be decoded without a crash, in one child process and
    once for each state of a file. Files that ship with the program are not checked. The rows can be
    too large for a pipe, so this process decodes them again afterwards. This protects against
    damaged files, including those of the hub, but not against a file that is replaced in between.

    Raises:
        UserError: the child process crashed on one of them.
    """
    with isolated.Reader(isolated.Limits(memory=_MAX_MEMORY, seconds=None)) as reader:
        for file, selected in files:
            if not isinstance(file.content, Path):
                continue
            place, asked = file.content.resolve(), frozenset(selected)
            if _SHIPPED in place.parents:
                continue
            try:
                state = file_state(place)
            except OSError:
                continue  # reading the file reports it
            if (state, asked) in _survived:
                continue
            reader.call(
                decoded,
                [file.name, str(place), list(selected)],
                damaged=f"{_damaged(file.name).removesuffix('.')}, in row groups of less than "
                f"{_MAX_MEMORY >> 30} GB.",
            )
            if len(_survived) >= _MAX_SURVIVED:
                _survived.clear()
            _survived.add((state, asked))


def decoded(data: bytes, name: str, path: str, selected: list[str]) -> Iterator[bytes]:
    """Decode all rows of a file's columns and discard them; runs in the child process of
    `require_readable`. Other errors than a crash are reported when the file is read.

    Raises:
        UserError: a batch of 256 rows needs more than 1 GB.
    """
    largest = 0
    with suppress(UserError), translate_damage(_damaged(name)):
        for _columns_read, batch in _batches(File(name, Path(path)), (), selected, None):
            largest = max(largest, batch.nbytes)
    if largest > _MAX_BATCH:
        raise UserError(f"{name} has rows of more than {_MAX_BATCH >> 28} MB each: shorten them.")
    yield data


def _rows_in_process(
    file: File, needed: Sequence[Sequence[str]], selected: Sequence[str], limit: int | None
) -> Iterator[Row]:
    """Rows of a Parquet file that is known not to crash the process.

    Raises:
        UserError: as `rows`.
    """
    number = 0
    # Damage can become apparent as late as in a cell.
    with translate_damage(_damaged(file.name)):
        for columns, batch in _batches(file, needed, selected, limit):
            for index in range(batch.num_rows):
                number += 1
                try:
                    cells = {
                        name: [] if column is None else _value(batch.column(column)[index])
                        for name, column in columns.items()
                    }
                except UnicodeDecodeError:
                    yield Row(number, problem=NOT_UTF8)
                    continue
                yield Row(number, cells)


def _damaged(name: str) -> str:
    return f"{name} is not a readable Parquet file: write it again."


def _too_large(name: str, limit: int) -> UserError:
    return UserError(
        f"{name} has more than {limit // MEGABYTE:,} MB when unpacked: split the file."
    )


def _batches(
    file: File, needed: Sequence[Sequence[str]], selected: Sequence[str], limit: int | None
) -> Iterator[tuple[dict[str, str | None], pa.RecordBatch]]:
    """Batches of 256 rows, and their column for each name in `selected` that the file has; None for
    a type other than texts, numbers and spans, which is not read."""
    with file.open() as raw:
        if raw.read(2) == b"\x1f\x8b":
            with open_bytes(file, limit) as stream:
                raw = io.BytesIO(stream.read())
        opened = pq.ParquetFile(raw)
        schema = opened.schema_arrow
        names = checked_columns(file, schema.names, needed, selected)
        by_name = dict(zip(names, schema.names, strict=True))
        columns: dict[str, str | None] = {
            name: by_name[name] if _is_read(schema.field(by_name[name]).type, limit) else None
            for name in selected
            if name in by_name
        }
        read = [column for column in columns.values() if column is not None]
        if limit is not None and _unpacked(opened.metadata) > limit:
            raise _too_large(file.name, limit)
        # As a dictionary, a text that a million rows share is in memory once. Its size is counted
        # for each row, before any row converts it to a string.
        texts = [column for column in read if _is_text(schema.field(column).type)]
        opened = pq.ParquetFile(raw, read_dictionary=texts)
        count = 0
        for batch in opened.iter_batches(batch_size=256, columns=read, use_threads=False):
            if limit is not None:
                count += sum(_size(column) for column in batch.columns)
                count += 8 * batch.num_rows * (len(columns) - len(read))
                if count > limit:
                    raise _too_large(file.name, limit)
            yield columns, batch


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_read(kind: pa.DataType, limit: int | None) -> bool:
    """Whether a type is read: texts and numbers and, in files on disk, lists of them (PosIR's
    spans) and structs of these (SQuAD's answers). Uploads could contain lists of any length, and
    dates can be outside Python's range."""
    if limit is None and pa.types.is_struct(kind):
        return all(_is_read(kind.field(at).type, limit) for at in range(kind.num_fields))
    if limit is None and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _is_single(kind.value_type)
    return _is_single(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _is_single(kind: pa.DataType) -> bool:
    return (
        _is_text(kind)
        or kind in (*_VIEWS, pa.bool_(), pa.null())
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
    )


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        kind = scalar.type
        return {kind.field(at).name: _value(scalar[at]) for at in range(kind.num_fields)}
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar):
        # Enough for a span, and for answers, of which only the first is used.
        return [_value(item) for item in scalar.values[:_MAX_LIST]]
    value = scalar.as_py()
    return value.decode() if isinstance(value, bytes) else value


def _unpacked(metadata: pq.FileMetaData) -> int:
    return sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )


def _size(column: pa.Array) -> int:
    """Total bytes of a column's texts; 8 for any other value and for nulls."""
    if column.type in _VIEWS:
        column = column.cast(pa.large_binary())
    if isinstance(column, pa.DictionaryArray) and _is_text(column.dictionary.type):
        of_values = pc.binary_length(column.dictionary)
        lengths = pc.take(of_values, column.indices)
    elif _is_text(column.type):
        lengths = pc.binary_length(column)
    else:
        return 8 * len(column)
    total: int = (pc.sum(lengths).as_py() or 0) + 8 * lengths.null_count
    return total
