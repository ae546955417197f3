"""Rows of CSV, TSV, JSONL and Parquet, one at a time, each with its number in the file.

Columns are identified by their names in lower case without surrounding white space. A row that
cannot be read is returned with the reason, never skipped. Blank lines do not count as rows.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from poslens.attribution.datasets import parquet
from poslens.attribution.datasets.schema import (
    NOT_UTF8,
    Column,
    Row,
    checked_columns,
    column_name,
    names_of,
    required_names,
)
from poslens.attribution.datasets.streams import (
    MAX_JSON,
    MAX_LINE,
    MEGABYTE,
    File,
    has_foreign_bytes,
    json_lines,
    open_bytes,
    open_text,
)
from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

# A text above PosLens's limit must be rejected by its length, without ending the reading.
csv.field_size_limit(100 * MEGABYTE)
_MAX_HEADER = 1_000_000
_DELIMITERS = ",;\t"
_ROWS_OF_COLUMNS = 20
"""Rows of JSON lines from which columns are taken: one row can lack a field."""


def suffix(name: str) -> str:
    """The format from the file's name without `.gz`: `.csv`, `.tsv`, `.jsonl`, `.parquet` or ``."""
    name = name.lower().removesuffix(".gz")
    return next((ending for ending in SUFFIXES if name.endswith(ending)), "")


def columns_of(file: File) -> frozenset[str]:
    """Names of the columns of a file on disk, from its header or its first 20 rows; none if it
    cannot be read."""
    kind = suffix(file.name)
    if kind == ".parquet":
        return frozenset(parquet.columns_of(file))
    try:
        if kind == ".jsonl":
            rows = islice(json_rows(file), _ROWS_OF_COLUMNS)
            return frozenset(name for row in rows for name in row.cells)
        with open_text(file) as stream:
            first = stream.readline(_MAX_HEADER)
    except (UserError, OSError, UnicodeError):
        return frozenset()
    return frozenset(column_name(name) for d in _DELIMITERS for name in _cells(first, d))


def rows(file: File, columns: Sequence[Column[Any]], limit: int | None = None) -> Iterator[Row]:
    """The rows of a file in the format that its suffix states. Of Parquet files only `columns` are
    read; `limit` is the maximum number of unpacked bytes.

    Raises:
        UserError: the file is in another format, damaged or too large, or a required column is
            missing or occurs twice.
    """
    kind = suffix(file.name)
    if not kind:
        raise UserError(
            f"{file.name} is not in a known format: use a .csv, .tsv, .jsonl or .parquet file, "
            "optionally with .gz appended."
        )
    if kind == ".parquet":
        return parquet.rows(file, columns, limit)
    if kind == ".jsonl":
        return json_rows(file, limit)
    return csv_rows(file, columns, "\t,;" if kind == ".tsv" else _DELIMITERS, limit)


def csv_rows(
    file: File, columns: Sequence[Column[Any]], delimiters: str = ",", limit: int | None = None
) -> Iterator[Row]:
    """Rows of delimited text with a header, separated by the first of `delimiters` that yields the
    required columns.

    Raises:
        UserError: as `rows`.
    """
    needed = required_names(columns)
    with open_text(file, limit) as stream:
        first = stream.readline(_MAX_HEADER)
        if not first.strip():
            raise UserError(f"{file.name} has no header: name the columns in line 1.")
        if len(first) == _MAX_HEADER:
            raise UserError(f"Line 1 of {file.name} is not a header: name the columns there.")
        headers = {d: [column_name(name) for name in _cells(first, d)] for d in delimiters}
        delimiter = next(
            (d for d in delimiters if all({*each} & {*headers[d]} for each in needed)),
            delimiters[0],
        )
        names = checked_columns(file, _cells(first, delimiter), needed, names_of(columns))
        # Strict: half-quoted cells are an error of their row, not a guess.
        reader = csv.reader(chain((first,), stream), delimiter=delimiter, strict=True)
        try:
            next(reader)
        except (csv.Error, StopIteration) as error:
            raise UserError(
                f"Line 1 of {file.name} is not a header ({error}): name the columns there."
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
                    problem=f"the row has {counted(len(cells), 'cell')}, the header "
                    f"{counted(len(names), 'column')}",
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
        return "a quotation mark in this row is never closed: double or remove it"
    return f"the row's quotation marks are invalid ({error})"


def json_rows(file: File, limit: int | None = None) -> Iterator[Row]:
    """Rows of JSON lines, each an object.

    Raises:
        UserError: the file cannot be read, is damaged or too large.
    """
    for number, line in json_lines(file, limit):
        yield json_row(number, line)


def json_row(number: int, line: str | None) -> Row:
    """One line of JSON as a row; None is a line that was too long to be read."""
    fields = json_object(line)
    if isinstance(fields, str):
        return Row(number, problem=fields)
    return Row(number, {column_name(key): value for key, value in fields.items()})


def json_file(file: File) -> Any:
    """The value of a whole JSON file.

    Raises:
        UserError: the file cannot be read, is damaged or too large.
    """
    with open_bytes(file, MAX_JSON) as stream:
        data = stream.read()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file.name} is damaged or not JSON: copy it again.") from error


def json_object(line: str | None) -> dict[str, Any] | str:
    """The object in a line of JSON with its original names, or the reason why there is none."""
    if line is None:
        return f"the line is longer than {MAX_LINE:,} characters"
    if has_foreign_bytes(line):
        return NOT_UTF8
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON ({str(error)[:80]})"
    if isinstance(fields, dict):
        return fields
    return "the line is JSON, but not an object"
