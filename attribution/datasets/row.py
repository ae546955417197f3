"""A row of any table, and normalizing column names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from poslens.attribution.datasets.streams import File
from poslens.attribution.errors import UserError

NOT_UTF8 = "the row is not UTF-8 text: save the file as UTF-8"


@dataclass(frozen=True, slots=True)
class Row:
    """Cells by column; if they could not be read, `problem` is the reason.

    `number` is the line on which the row begins, for Parquet the row, both from 1.
    """

    number: int
    cells: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def checked_columns(file: File, names: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Normalized column names.

    Raises:
        UserError: one of `needed` is missing, or two are equal.
    """
    found = [column_name(name) for name in names]
    if missing := [name for name in needed if name not in found]:
        raise UserError(
            f"{file.name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has "
            f"{_listed(names)}."
        )
    if twice := [name for name in needed if found.count(name) > 1]:
        raise UserError(f"{file.name} has the column {twice[0]} twice: rename one of them.")
    return found


def column_name(column: str) -> str:
    """A normalized column name."""
    return column.strip().casefold()


def _listed(names: Sequence[str]) -> str:
    """Column names for a message, shortened, because a file that is no table can have any."""
    shown = [f"{name.strip()[:40]}" for name in names[:12]]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (", ".join(shown) + more).strip() or "none"
