"""The row schema of all file readers: columns with their names and types, and rows of values.

A reader declares its columns and takes their values with `row[COLUMN]`, which has the column's type
or raises `UserError`. `accepted` turns these errors into rejections, so readers do not check values
themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import Rejection
from poslens.attribution.errors import UserError, printable
from poslens.attribution.text import clean

T = TypeVar("T")
Kind = Callable[[Any, str], T]
"""Type of a column: takes a value and the column's name for messages, returns the typed value, and
raises `UserError` if the value is invalid."""

NOT_UTF8 = "the row is not UTF-8 text: save the file as UTF-8"
MAX_ID = 500
"""Maximum length of an id, language or domain, in characters."""

_MAX_WHOLE = 10**12
_MAX_GRADE = 1_000_000
_WHOLE = re.compile(r"\s*(-?[0-9]{1,12})(?:\.0)?\s*")
_TYPES = {bool: "true or false", int: "a number", float: "a number", list: "a list"}


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column: `names` are its name and its aliases, `read` checks and converts a value. Tables
    with a header must have a `required` column."""

    names: tuple[str, ...]
    read: Callable[[Any], T]
    required: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Cells by column; if they could not be read, `problem` is the reason.

    `number` is the line on which the row begins, for Parquet the row, both from 1.
    """

    number: int
    cells: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    def __getitem__(self, column: Column[T]) -> T:
        """The value in a column, under the first of its names that is not blank.

        Raises:
            UserError: the row could not be read, lacks the column, or has an invalid value in it.
        """
        if self.problem:
            raise UserError(self.problem)
        names = [name for name in column.names if name in self.cells]
        if column.required and not names:
            raise UserError(
                f"the row lacks {' or '.join(column.names)}; it has {_listed(list(self.cells))}"
            )
        values = [self.cells[name] for name in names]
        return column.read(next((v for v in values if v not in (None, "")), *values[:1] or [None]))


def required(name: str, kind: Kind[T], *aliases: str, called: str = "") -> Column[T]:
    """A column that every row needs. Messages use `called`, by default its name."""

    def read(value: Any) -> T:
        if _is_gap(value):
            raise UserError(f"the {called or name} is missing")
        return kind(value, called or name)

    return Column((name, *aliases), read, required=True)


def optional(name: str, kind: Kind[T], *aliases: str) -> Column[T | None]:
    """A column that a table or a row can lack or leave blank; its value is then None."""

    def read(value: Any) -> T | None:
        blank = _is_gap(value) or (isinstance(value, str) and not value.strip())
        return None if blank else kind(value, name)

    return Column((name, *aliases), read, required=False)


def accepted(file: File, rows: Iterable[Row], read: Callable[[Row], T]) -> Iterator[T | Rejection]:
    """The result of `read` for each row, or a rejection with the reason why it raised."""
    for row in rows:
        try:
            result: T | Rejection = read(row)
        except UserError as error:
            result = Rejection(file.name, row.number, str(error))
        yield result


# -- types of columns ------------------------------------------------------------------------------


def as_is(value: Any, name: str) -> Any:
    """Any value as it is, for a reader that interprets it."""
    return value


def as_string(value: Any, name: str) -> str:
    """Text as it is in the file."""
    if not isinstance(value, str):
        kind = _TYPES.get(type(value), "an object with fields")
        raise UserError(f"the {name} is {kind}, not text")
    return value


def as_text(value: Any, name: str) -> str:
    """Text as models read it: see `clean`."""
    return clean(as_string(value, name), name)


def as_id(value: Any, name: str) -> str:
    """An id: text, or a whole number, of up to 500 characters, without characters that would break
    storage or display (a lone surrogate, NUL)."""
    if isinstance(value, float) and value.is_integer():
        # A column of numbers with gaps is read as floats.
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"the {name} is neither text nor a whole number")
    if isinstance(value, int) and abs(value) >= 10**MAX_ID:
        raise UserError(f"the {name} has more than {MAX_ID} digits")
    content = str(value)
    if not content.strip():
        raise UserError(f"the {name} is empty")
    if len(content) > MAX_ID:
        raise UserError(f"the {name} has {len(content):,} characters; the limit is {MAX_ID}")
    if printable(content) != content:
        raise UserError(f"the {name} {content!a:.80} contains characters that are not text")
    return content


def as_label(value: Any, name: str) -> str:
    """A language, domain or type: an id without the white space around it."""
    return as_id(value.strip() if isinstance(value, str) else value, name)


def as_whole(value: Any, name: str) -> int:
    """A whole number, which can be stored as text or as a float."""
    number = value
    if isinstance(value, str):
        number = int(match[1]) if (match := _WHOLE.fullmatch(value)) else None
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        shown = repr(value)[:40] if isinstance(value, str | float) else _TYPES.get(type(value))
        raise UserError(f"the {name} is {shown or 'an object'}, not a whole number")
    if abs(number) > _MAX_WHOLE:
        raise UserError(f"the {name} exceeds {_MAX_WHOLE:,}")
    return number


def as_grade(value: Any, name: str) -> int:
    """A judgment as a grade, 0 if not relevant; pytrec_eval requires whole numbers."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not -math.inf < number <= _MAX_GRADE
    ):
        raise UserError(f"the {name} {str(value)[:40]!a} is not a number up to {_MAX_GRADE:,}")
    return max(1, round(number)) if number > 0 else 0


def _is_gap(value: Any) -> bool:
    """Whether there is no value: None, or NaN, which a column of numbers with gaps has."""
    return value is None or (isinstance(value, float) and value != value)


# -- columns of tables -----------------------------------------------------------------------------


def names_of(columns: Iterable[Column[Any]]) -> list[str]:
    """All names of columns, aliases included."""
    return [name for column in columns for name in column.names]


def required_names(columns: Iterable[Column[Any]]) -> list[tuple[str, ...]]:
    """The alternative names of each required column: a table needs one of them."""
    return [column.names for column in columns if column.required]


def checked_columns(
    file: File, names: Sequence[str], needed: Sequence[Sequence[str]], selected: Sequence[str]
) -> list[str]:
    """Normalized column names of a table.

    Raises:
        UserError: a column of `needed` (its alternative names) is missing, or one of `selected`,
            which are read, occurs twice.
    """
    columns = [column_name(name) for name in names]
    if missing := [" or ".join(each) for each in needed if not {*each} & {*columns}]:
        raise UserError(
            f"{file.name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has "
            f"{_listed(names)}."
        )
    if twice := [name for name in selected if columns.count(name) > 1]:
        raise UserError(f"{file.name} has the column {twice[0]} twice: rename one of them.")
    return columns


def column_name(column: str) -> str:
    """A normalized column name."""
    return column.strip().casefold()


def _listed(names: Sequence[str]) -> str:
    """Column names for a message, shortened, because a file that is not a table can have any."""
    shown = [f"{name.strip()[:40]}" for name in names[:12]]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (", ".join(shown) + more).strip() or "none"
