"""Rows of CSV, TSV, JSONL and Parquet, one at a time, each with its number in the file.

Columns go by their names in lower case without white space around them. A row that cannot be
read is given out with the reason, never left out. Blank lines are no rows.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from attribution.datasets import apart
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
_NOT_UTF8 = "the row is not UTF-8 text: save the file as UTF-8"


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
        next(reader)
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
                yield Row(number, problem=_NOT_UTF8)
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
    if line is None:
        return Row(number, problem=f"the line is longer than {MAX_LINE:,} characters")
    if has_foreign_bytes(line):
        return Row(number, problem=_NOT_UTF8)
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(number, problem=f"the line is not JSON ({str(error)[:80]})")
    if not isinstance(found, dict):
        return Row(number, problem="the line is JSON, but no object with named fields")
    return Row(number, {_name(key): value for key, value in found.items()})


def _parquet(
    file: File, needed: Sequence[str], wanted: Sequence[str], limit: int | None
) -> Iterator[Row]:
    if limit is None:
        apart.require_readable([(file, wanted)])
        return parquet_in_process(file, needed, wanted, None)
    with open_bytes(file, limit) as stream:
        data = stream.read()
    return apart.parquet_rows(data, file.name, list(needed), list(wanted), limit)


def parquet_in_process(
    file: File, needed: Sequence[str], wanted: Sequence[str], limit: int | None
) -> Iterator[Row]:
    """Rows of a Parquet file that may be trusted not to end the process.

    Raises:
        UserError: as `rows`.
    """
    number = 0
    # A damaged file may show itself as late as in a cell.
    with _said(file):
        for columns, batch in _parquet_batches(file, needed, wanted, limit):
            for index in range(batch.num_rows):
                number += 1
                try:
                    cells = {
                        name: _value(batch.column(column)[index])
                        for name, column in columns.items()
                    }
                except UnicodeDecodeError:
                    yield Row(number, problem=_NOT_UTF8)
                    continue
                yield Row(number, cells)


def decode(file: File, wanted: Sequence[str]) -> None:
    """Decode columns to the end and keep nothing: what `parquet_in_process` asks of Arrow.

    Raises:
        UserError: as `rows`.
    """
    with _said(file):
        for _ in _parquet_batches(file, (), wanted, None):
            pass


@contextmanager
def _said(file: File) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise UserError(
            f"{file.name} is not a Parquet file that can be read: write it again."
        ) from error


def _parquet_batches(
    file: File, needed: Sequence[str], wanted: Sequence[str], limit: int | None
) -> Iterator[tuple[dict[str, str], pa.RecordBatch]]:
    with file.open() as raw:
        if raw.read(2) == b"\x1f\x8b":
            with open_bytes(file, limit) as stream:
                raw = io.BytesIO(stream.read())
        opened = pq.ParquetFile(raw)
        schema = opened.schema_arrow
        by_name = dict(zip(_columns(file, schema.names, needed), schema.names, strict=True))
        columns = {name: by_name[name] for name in wanted if name in by_name}
        too_large = UserError(
            f"{file.name} unpacks to more than {(limit or 0) // MEGABYTE:,} MB: "
            "give it in smaller parts."
        )
        if limit is not None and _unpacked(opened.metadata) > limit:
            raise too_large
        # Kept as a dictionary, a text that a million rows share is held once; it is counted
        # for each row before any row makes a string of it.
        texts = [
            columns[name]
            for name in columns
            if pa.types.is_string(kind := schema.field(columns[name]).type)
            or pa.types.is_large_string(kind)
            or pa.types.is_binary(kind)
        ]
        opened = pq.ParquetFile(raw, read_dictionary=texts)
        count = 0
        for batch in opened.iter_batches(batch_size=256, columns=list(columns.values())):
            if limit is not None:
                count += sum(sum(_lengths(batch.column(column))) for column in columns.values())
                if count > limit:
                    raise too_large
            yield columns, batch


def _value(scalar: pa.Scalar) -> Any:
    value = scalar.as_py()
    return value.decode() if isinstance(value, bytes) else value


def _unpacked(metadata: pq.FileMetaData) -> int:
    return sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )


def _lengths(column: pa.Array) -> list[int]:
    """Bytes of each row's text; 8 for anything else and for nulls."""
    if not isinstance(column, pa.DictionaryArray):
        return [8] * len(column)
    of_values = pc.binary_length(column.dictionary)
    return pc.fill_null(pc.take(of_values, column.indices), 8).to_pylist()
