"""Rows of CSV, TSV, JSONL and Parquet, one at a time, each with its number in the file.

Columns are identified by their names in lower case without surrounding white space. A row that
cannot be read is returned with the reason, never skipped. Blank lines are no rows.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from poslens.attribution.datasets import parquet
from poslens.attribution.datasets.row import NOT_UTF8, Row, checked_columns, column_name
from poslens.attribution.datasets.streams import (
    MAX_LINE,
    MEGABYTE,
    File,
    has_foreign_bytes,
    json_lines,
    open_text,
)
from poslens.attribution.errors import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

# A text above PosLens's limit must be rejected by its length, without ending the reading.
csv.field_size_limit(100 * MEGABYTE)
_MAX_HEADER = 1_000_000


def suffix(name: str) -> str:
    """The format from the file's name without `.gz`: `.csv`, `.tsv`, `.jsonl`, `.parquet` or ``."""
    name = name.lower().removesuffix(".gz")
    return next((ending for ending in SUFFIXES if name.endswith(ending)), "")


def rows(
    file: File, needed: Sequence[str], wanted: Sequence[str] = (), limit: int | None = None
) -> Iterator[Row]:
    """The rows of a file, in the format of its name's ending.

    `needed` columns are required and `wanted` ones optional (Parquet reads no others); `limit` is
    the maximum number of unpacked bytes.

    Raises:
        UserError: another format, a column is missing or duplicated, or the file is damaged or too
            large.
    """
    kind = suffix(file.name)
    if not kind:
        raise UserError(
            f"{file.name} is of no known format: give a .csv, .tsv, .jsonl or .parquet file, or "
            "one of these with .gz behind it."
        )
    if kind == ".parquet":
        return parquet.rows(file, needed, (*needed, *wanted), limit)
    if kind == ".jsonl":
        return json_rows(file, limit)
    return csv_rows(file, needed, "\t,;" if kind == ".tsv" else ",;\t", limit)


def csv_rows(
    file: File, needed: Sequence[str], delimiters: str = ",", limit: int | None = None
) -> Iterator[Row]:
    """Rows of delimited text with a header; the first of `delimiters` that yields `needed` is used.

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
            (
                d
                for d, found in by_delimiter.items()
                if set(needed) <= {column_name(c) for c in found}
            ),
            delimiters[0],
        )
        names = checked_columns(file, by_delimiter[delimiter], needed)
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
    return Row(number, {column_name(key): value for key, value in found.items()})


def json_object(line: str | None) -> dict[str, Any] | str:
    """The object in a line of JSON with its original names, or the reason why there is none."""
    if line is None:
        return f"the line is longer than {MAX_LINE:,} characters"
    if has_foreign_bytes(line):
        return NOT_UTF8
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON ({str(error)[:80]})"
    return found if isinstance(found, dict) else "the line is JSON, but no object with named fields"
