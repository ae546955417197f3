"""Rows of CSV, TSV, JSONL and Parquet, one at a time, each with its number in the file.

Columns go by their names in lower case without white space around them. A row that cannot be
read is given out with the reason, never left out. Blank lines are no rows.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from attribution import isolated
from attribution.datasets.streams import (
    MAX_LINE,
    MEGABYTE,
    File,
    has_foreign_bytes,
    json_lines,
    open_bytes,
    open_text,
)
from attribution.errors import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

# A text over the product's limit is to be rejected by its length, not to end the reading.
csv.field_size_limit(100 * MEGABYTE)
_MAX_HEADER = 1_000_000
_SHIPPED = Path(__file__).parent / "sample"
_MAX_MEMORY = 4 << 30
_MAX_BATCH = 1 << 30
_MAX_LIST = 16
_VIEWS = (pa.string_view(), pa.binary_view())
NOT_UTF8 = "the row is not UTF-8 text: save the file as UTF-8"


@dataclass(frozen=True, slots=True)
class Row:
    """Cells by column; where they could not be read, `problem` says why.

    `number` is the line on which the row begins, for Parquet the row, both from 1.
    """

    number: int
    cells: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def suffix(name: str) -> str:
    """The format by the file's name, `.gz` left out: `.csv`, `.tsv`, `.jsonl`, `.parquet` or ``."""
    name = name.lower().removesuffix(".gz")
    return next((ending for ending in SUFFIXES if name.endswith(ending)), "")


def rows(
    file: File, needed: Sequence[str], wanted: Sequence[str] = (), limit: int | None = None
) -> Iterator[Row]:
    """The rows of a file in the format that its name tells.

    `needed` columns must be there, `wanted` ones may be (Parquet reads no others); `limit` caps
    the bytes unpacked.

    Raises:
        UserError: another format, a column is missing or there twice, the file is damaged or too
            large.
    """
    kind = suffix(file.name)
    if not kind:
        raise UserError(
            f"{file.name} is of no known format: give a .csv, .tsv, .jsonl or .parquet file, or "
            "one of these with .gz behind it."
        )
    if kind == ".parquet":
        return _parquet(file, needed, (*needed, *wanted), limit)
    if kind == ".jsonl":
        return json_rows(file, limit)
    return csv_rows(file, needed, "\t,;" if kind == ".tsv" else ",;\t", limit)


def _columns(file: File, names: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Names as rows have them.

    Raises:
        UserError: one of `needed` is missing, or two are the same.
    """
    found = [_name(name) for name in names]
    if missing := [name for name in needed if name not in found]:
        raise UserError(
            f"{file.name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has "
            f"{_listed(names)}."
        )
    if twice := [name for name in needed if found.count(name) > 1]:
        raise UserError(f"{file.name} has the column {twice[0]} twice: rename one of them.")
    return found


def _name(column: str) -> str:
    return column.strip().casefold()


def _listed(names: Sequence[str]) -> str:
    """Column names for a message: a file that is no table may have any, of any length."""
    shown = [f"{name.strip()[:40]}" for name in names[:12]]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (", ".join(shown) + more).strip() or "none"


def csv_rows(
    file: File, needed: Sequence[str], delimiters: str = ",", limit: int | None = None
) -> Iterator[Row]:
    """Rows of delimited text with a header; the first of `delimiters` that gives `needed`.

    Raises:
        UserError: as `rows`.
    """
    with open_text(file, limit) as stream:
        first = stream.readline(_MAX_HEADER)
        if not first.strip():
            raise UserError(f"{file.name} begins with no header: name the columns in line 1.")
        if len(first) == _MAX_HEADER:
            raise UserError(f"Line 1 of {file.name} is no header: name the columns there.")
        by_delimiter = {d: _cells(first, d) for d in delimiters}
        delimiter = next(
            (d for d, found in by_delimiter.items() if set(needed) <= {_name(c) for c in found}),
            delimiters[0],
        )
        names = _columns(file, by_delimiter[delimiter], needed)
        # Strict: half-quoted cells are an error of their row, not a guess.
        reader = csv.reader(chain((first,), stream), delimiter=delimiter, strict=True)
        try:
            next(reader)
        except (csv.Error, StopIteration) as error:
            raise UserError(
                f"Line 1 of {file.name} is no header ({error}): name the columns there."
            ) from error
        while True:
            number = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Row(number, problem=_csv_problem(error))
                continue
            if not cells:
                continue
            if any(map(has_foreign_bytes, cells)):
                yield Row(number, problem=NOT_UTF8)
            elif len(cells) != len(names):
                yield Row(
                    number,
                    problem=f"the row has {len(cells)} cells, the header {len(names)} columns",
                )
            else:
                yield Row(number, dict(zip(names, cells, strict=True)))


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _csv_problem(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quotation mark opened in this row is never closed: double or remove it"
    return f"the row's quotation marks do not fit ({error})"


def json_rows(file: File, limit: int | None = None) -> Iterator[Row]:
    """Rows of JSON lines, each an object.

    Raises:
        UserError: the file cannot be read, is damaged or too large.
    """
    for number, line in json_lines(file, limit):
        yield json_row(number, line)


def json_row(number: int, line: str | None) -> Row:
    """One line of JSON as a row; None is a line that was too long to be read."""
    found = json_object(line)
    if isinstance(found, str):
        return Row(number, problem=found)
    return Row(number, {_name(key): value for key, value in found.items()})


def json_object(line: str | None) -> dict[str, Any] | str:
    """The object of a line of JSON, its names as they stand, or why there is none."""
    if line is None:
        return f"the line is longer than {MAX_LINE:,} characters"
    if has_foreign_bytes(line):
        return NOT_UTF8
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON ({str(error)[:80]})"
    return found if isinstance(found, dict) else "the line is JSON, but no object with named fields"


def _parquet(
    file: File, needed: Sequence[str], wanted: Sequence[str], limit: int | None
) -> Iterator[Row]:
    if limit is None:
        require_readable([(file, wanted)])
        yield from parquet_in_process(file, needed, wanted, None)
        return
    with open_bytes(file, limit) as stream:
        data = stream.read()
    answer = isolated.call(
        uploaded_rows,
        [file.name, list(needed), list(wanted), limit],
        data,
        damaged=_damaged(file.name),
        limits=isolated.Limits(answer=2 * limit + MEGABYTE),
    )
    for line in io.BytesIO(answer):
        yield Row(*json.loads(line))


def uploaded_rows(
    data: bytes, name: str, needed: list[str], wanted: list[str], limit: int
) -> Iterator[bytes]:
    """Rows of an uploaded Parquet file as lines of JSON; what its child does.

    Raises:
        UserError: as `rows`.
    """
    left = 2 * limit
    for row in parquet_in_process(File(name, data), needed, wanted, limit):
        line = json.dumps([row.number, row.cells, row.problem], ensure_ascii=False)
        said = line.encode("utf-8", "surrogatepass") + b"\n"
        left -= len(said)
        if left < 0:
            raise _too_large(name, limit)
        yield said


def parquet_columns(file: File) -> tuple[str, ...]:
    """Names of a Parquet file's columns, as rows have them; none where it cannot be read. Told by
    the child of `require_readable`, once for each state of the file."""
    if not isinstance(file.content, Path):
        return ()
    try:
        state = file.content.stat()
        place = str(file.content.resolve())
    except OSError:
        return ()
    return _columns_of(file.name, place, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _columns_of(name: str, place: str, _changed: int, _size: int) -> tuple[str, ...]:
    try:
        answer = isolated.call(named_columns, [name, place], damaged=_damaged(name))
    except UserError:
        return ()
    return tuple(json.loads(answer))


def named_columns(data: bytes, name: str, path: str) -> Iterator[bytes]:
    """Column names of a file on disk as JSON; what the child of `parquet_columns` does.

    Raises:
        UserError: it is no Parquet file.
    """
    with _said(name), File(name, Path(path)).open() as raw:
        found = [_name(column) for column in pq.ParquetFile(raw).schema_arrow.names]
        yield json.dumps(found).encode()


def require_readable(files: Sequence[tuple[File, Sequence[str]]]) -> None:
    """Decode columns of files on disk in one child; those that are shipped with the program need
    no check. They may be too large to come through a pipe: what the child survived is decoded
    again here. That guards against damaged files, of the hub too, not against one that is
    exchanged in between by who starts the program.

    Raises:
        UserError: the child did not survive one of them.
    """
    with isolated.Reader(isolated.Limits(memory=_MAX_MEMORY, seconds=None)) as reader:
        for file, wanted in files:
            if isinstance(file.content, Path) and _SHIPPED not in file.content.resolve().parents:
                place = str(file.content.resolve())
                reader.call(
                    decoded,
                    [file.name, place, list(wanted)],
                    damaged=f"{_damaged(file.name).removesuffix('.')}, in row groups of less than "
                    f"{_MAX_MEMORY >> 30} GB.",
                )


def decoded(data: bytes, name: str, path: str, wanted: list[str]) -> Iterator[bytes]:
    """Decode a file's columns to the end and answer nothing; what the child of `require_readable`
    does. Errors other than the end of the process are left to who reads the file.

    Raises:
        UserError: 256 rows take more memory than any texts that are read.
    """
    largest = 0
    with suppress(UserError), _said(name):
        for _columns_read, batch in _parquet_batches(File(name, Path(path)), (), wanted, None):
            largest = max(largest, batch.nbytes)
    if largest > _MAX_BATCH:
        raise UserError(f"{name} has rows of more than {_MAX_BATCH >> 28} MB each: shorten them.")
    yield data


def parquet_in_process(
    file: File, needed: Sequence[str], wanted: Sequence[str], limit: int | None
) -> Iterator[Row]:
    """Rows of a Parquet file that may be trusted not to end the process.

    Raises:
        UserError: as `rows`.
    """
    number = 0
    # A damaged file may show itself as late as in a cell.
    with _said(file.name):
        for columns, batch in _parquet_batches(file, needed, wanted, limit):
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
    return f"{name} is not a Parquet file that can be read: write it again."


def _too_large(name: str, limit: int) -> UserError:
    return UserError(
        f"{name} unpacks to more than {limit // MEGABYTE:,} MB: give it in smaller parts."
    )


@contextmanager
def _said(name: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    # What a damaged file makes of Arrow's own code is any of these.
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        MemoryError,
    ) as error:
        raise UserError(_damaged(name)) from error


def _parquet_batches(
    file: File, needed: Sequence[str], wanted: Sequence[str], limit: int | None
) -> Iterator[tuple[dict[str, str | None], pa.RecordBatch]]:
    """Batches of 256 rows, and the column in them of each name of `wanted` that the file has; None
    for one of another type than texts, numbers and spans, which is not read."""
    with file.open() as raw:
        if raw.read(2) == b"\x1f\x8b":
            with open_bytes(file, limit) as stream:
                raw = io.BytesIO(stream.read())
        opened = pq.ParquetFile(raw)
        schema = opened.schema_arrow
        by_name = dict(zip(_columns(file, schema.names, needed), schema.names, strict=True))
        columns: dict[str, str | None] = {
            name: by_name[name] if _is_read(schema.field(by_name[name]).type, limit) else None
            for name in wanted
            if name in by_name
        }
        read = [column for column in columns.values() if column is not None]
        if limit is not None and _unpacked(opened.metadata) > limit:
            raise _too_large(file.name, limit)
        # Kept as a dictionary, a text that a million rows share is held once; it is counted
        # for each row before any row makes a string of it.
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
    """Texts, numbers, and of files on disk lists of them (PosIR's spans) and records of these
    (SQuAD's answers). A list's length is the file's own, and a date may be one that Python cannot
    say."""
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
        # No span is longer, and of many answers the first counts: no copy of all of it.
        return [_value(one) for one in scalar.values[:_MAX_LIST]]
    value = scalar.as_py()
    return value.decode() if isinstance(value, bytes) else value


def _unpacked(metadata: pq.FileMetaData) -> int:
    return sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )


def _size(column: pa.Array) -> int:
    """Bytes of all rows' texts; 8 for any other value and for nulls."""
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
