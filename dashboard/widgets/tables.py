"""Tables on pages: without empty columns, with a selectable row, or of items without a result and
rejected rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from poslens.attribution.datasets.types import Rejection
from poslens.attribution.nouns import counted
from poslens.figures.plain import plain
from poslens.rows import VERDICT, Table, scaled

MOST_ROWS = 1000
"""Maximum number of listed failures or rejected rows."""
MOST_REASONS = 5
"""Maximum number of reasons above the table of failures."""
_COUNTS = (
    *("pairs", "queries", "documents", "sentences", "sentences in several documents"),
    *("truncated", "failed", "n", "units"),
)
"""Columns that say what results are of. They are the last ones, as are numbers of items left out,
because a phone shows only the first."""
_VERDICT_PX = 245
"""Width of a column of verdicts: `too few documents, about 1,234 needed`."""
_DECIMALS = re.compile(r"^%\+?,?\.(\d)f")
NOTHING = "–"
"""The text of an empty cell."""


def rows_key(key: str, ids: Sequence[str]) -> str:
    """The key of a table with these rows.

    Streamlit stores a selection by key alone. A table with other rows must be another widget, so
    that an old selection doesn't point into the new rows.
    """
    return f"{key}.{hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:12]}"


def with_values(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of a table that have a value in any row, with missing values instead of blank
    texts."""
    marked, filled = _marked(frame)
    return marked.iloc[:, np.flatnonzero(filled.any(axis=0))]


def column_settings(table: Table[Any], formats: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Column configurations: the meaning of a column is the tooltip of its heading, and numbers are
    shown in `formats`, by default those of the table, which are specifications for Python's
    `format`; numbers in percent and in percentage points are already multiplied by 100."""
    meanings = table.meanings()
    whole = table.whole_numbers()
    settings: dict[str, Any] = {
        name: st.column_config.NumberColumn(format="localized", help=plain(meaning))
        if name in whole
        else st.column_config.Column(help=plain(meaning) if meaning else None)
        for name, meaning in meanings.items()
    }
    for name, form in (table.formats() if formats is None else formats).items():
        settings[name] = st.column_config.NumberColumn(
            format=_of_column(form),
            help=plain(meanings[name]) if meanings.get(name) else None,
        )
    if VERDICT in settings:
        # Without a width, the browser cuts off the few verdicts that are much longer than most.
        settings[VERDICT]["width"] = _VERDICT_PX
    return settings


def _of_column(form: str) -> str:
    """A specification for Python's `format` as one for columns."""
    _, form, unit = scaled(form)
    return f"%{form[:-1]}f%%" if form.endswith("%") else f"%{form}{unit}"


def show_table(frame: pd.DataFrame, **options: Any) -> None:
    """Show a table without empty columns and without rows that have only a name, numbers of items
    last; nothing if the table is then empty. `options` are those of `st.dataframe`."""
    marked, filled = _marked(frame)
    named_only = np.zeros(len(frame), bool) if filled.shape[1] < 2 else ~filled[:, 1:].any(axis=1)
    shown = marked.iloc[np.flatnonzero(~named_only), np.flatnonzero(filled.any(axis=0))]
    names = [str(name) for name in shown]
    last = [name for name in names if name in _COUNTS or "left out" in name]
    shown = shown[[*(name for name in names if name not in last), *last]]
    if len(shown):
        shown = _without_minus_zero(shown, options.get("column_config", {}))
        st.dataframe(shown, hide_index=True, placeholder=NOTHING, **options)


def _without_minus_zero(frame: pd.DataFrame, column_config: Mapping[str, Any]) -> pd.DataFrame:
    """The table with 0 for numbers that round to 0 in their column's format, because the browser
    would show -0.000."""
    changed = {
        name: frame[name].mask(frame[name].abs() < 0.5 * 10 ** -int(decimals[1]), 0.0)
        for name in frame.columns
        if frame[name].dtype.kind == "f"
        and (of_type := (column_config.get(name) or {}).get("type_config"))
        and (decimals := _DECIMALS.search(of_type.get("format") or ""))
    }
    return frame.assign(**changed)


def _marked(frame: pd.DataFrame) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """The table with missing values instead of blank texts, so that they have the placeholder, and
    which cells [rows, columns] have a value."""
    # Not `isin`: it converts texts to Arrow, which takes most of the time of a small table.
    values = frame.to_numpy(object, copy=True)
    blank = _is_blank(values).astype(bool)
    filled: NDArray[np.bool_] = ~(pd.isna(values) | blank)
    values[blank] = None
    marked = frame.copy(deep=False)
    for column in np.flatnonzero(blank.any(axis=0)).tolist():  # `mask` takes four times as long
        marked.isetitem(column, values[:, column])
    return marked, filled


_is_blank = np.frompyfunc(lambda value: isinstance(value, str) and value in ("", NOTHING), 1, 1)


def chosen_row(frame: pd.DataFrame, key: str, ids: str, **options: Any) -> int | None:
    """Show a table and return the position of the selected row; None if there is none.

    The column `ids` identifies the rows; `options` are those of `st.dataframe`. A row number from
    the browser that the table doesn't have selects nothing.
    """
    event = st.dataframe(
        _without_minus_zero(with_values(frame), options.get("column_config", {})),
        hide_index=True,
        placeholder=NOTHING,
        on_select="rerun",
        selection_mode="single-row",
        key=rows_key(key, [str(value) for value in frame[ids]]),
        **options,
    )
    rows = event.selection.rows
    return next((row for row in rows if row in range(len(frame))), None)


def on_row(
    frame: pd.DataFrame, key: str, ids: Sequence[str], choose: Callable[[str], None], **options: Any
) -> None:
    """Show a table of items with these `ids`, and call `choose` with the id of a row once the user
    selects it. `options` are those of `st.dataframe`."""
    key = rows_key(key, ids)

    def selected() -> None:
        for row in st.session_state[key].selection.rows:
            if row in range(len(ids)):
                choose(ids[row])

    st.dataframe(
        frame,
        key=key,
        hide_index=True,
        placeholder=NOTHING,
        on_select=selected,
        selection_mode="single-row",
        **options,
    )


@contextmanager
def no_result(
    frame: pd.DataFrame,
    of: str = "",
    unit: str = "pair",
    key: str | None = None,
    *,
    where: str = "",
    excluded: bool = False,
) -> Iterator[None]:
    """An expander, labeled with the count, with the most frequent reasons why items have no result,
    and a table of the items, whose column `reason` a narrow screen does not show.
    The body of the `with` block adds possible actions. `of` names their owner, `unit` one
    item, and `where`, such as "in 4 runs", ends the label, which says "failed" or "excluded"."""
    text = f"{counted(len(frame), unit)}{f' of {of}' if of else ''}"
    text += " excluded" if excluded else " failed"
    text = f"{text} {where}".rstrip()
    with st.expander(plain(text)):
        for reason, n in frame["reason"].value_counts().head(MOST_REASONS).items():
            st.markdown(plain(f"{counted(n, unit)}: {reason}"))
        _rows(frame.head(MOST_ROWS), len(frame), key)
        yield


def rejected_rows(rejected: Sequence[Rejection], label: str) -> None:
    """An expander that lists rows of files that are not valid pairs, with the reasons; nothing if
    there are none."""
    if rejected:
        rows = [(each.file, each.row, each.reason) for each in rejected[:MOST_ROWS]]
        with st.expander(plain(label)):
            _rows(pd.DataFrame(rows, columns=["file", "row", "reason"]), len(rejected))


def _rows(frame: pd.DataFrame, n: int, key: str | None = None) -> None:
    """The first of `n` rows, with a note if there are more."""
    st.dataframe(frame, hide_index=True, key=key)
    if n > len(frame):
        st.caption(f"Showing the first {len(frame):,} of {n:,}.")
