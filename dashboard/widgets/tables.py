"""Tables on pages: without what is empty, with a row to choose, and of what gave no result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import streamlit as st

from poslens.figures.plain import plain

SHOWN_FAILURES = 1000
NOTHING = "–"
"""What stands in a cell without a value."""


def rows_key(key: str, ids: Sequence[str]) -> str:
    """The key of a table with these rows.

    Streamlit keeps a selection by the key alone. A table of other rows is another widget: its
    selection must not point into the old rows.
    """
    return f"{key}.{hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:12]}"


def with_values(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns of a table that hold something in any row."""
    return frame.loc[:, [not _empty(frame[name]).all() for name in frame]]


def number_columns(formats: Mapping[str, str]) -> dict[str, Any]:
    """How columns show their numbers, of their formats as `format` takes them."""
    return {
        name: st.column_config.NumberColumn(format="percent" if form[-1] == "%" else f"%{form}")
        for name, form in formats.items()
    }


def show_table(frame: pd.DataFrame, **options: Any) -> None:
    """Show a table without empty columns and without rows that have nothing but their name; no
    table where nothing is left. `options` are those of `st.dataframe`."""
    shown = with_values(frame)
    if len(frame.columns) > 1:
        shown = shown[~shown.iloc[:, 1:].apply(_empty).all(axis=1).astype(bool)]
    if len(shown):
        st.dataframe(shown, hide_index=True, placeholder=NOTHING, **options)


def _empty(values: pd.Series) -> pd.Series:
    return values.isna() | values.isin(("", NOTHING))


def chosen_row(frame: pd.DataFrame, key: str, ids: str, **options: Any) -> int | None:
    """Show a table and return the position of the row that is chosen; None where there is none.

    The column `ids` tells the rows apart; `options` are those of `st.dataframe`. What a browser
    sends of a row that the table does not have chooses nothing.
    """
    event = st.dataframe(
        with_values(frame),
        hide_index=True,
        placeholder=NOTHING,
        on_select="rerun",
        selection_mode="single-row",
        key=rows_key(key, [str(value) for value in frame[ids]]),
        **options,
    )
    rows = event.selection.rows
    return next((row for row in rows if row in range(len(frame))), None)


@contextmanager
def no_result(
    frame: pd.DataFrame, of: str = "", unit: str = "pair", key: str | None = None
) -> Iterator[None]:
    """What gave no result and why, a row each, folded away under how many there are; what can be
    done about it goes inside. `of` says whose they are, `unit` what one of them is."""
    n = len(frame)
    text = f"{n:,} {unit}{'' if n == 1 else 's'}{f' of {of}' if of else ''} failed"
    with st.expander(plain(text)):
        st.dataframe(frame.head(SHOWN_FAILURES), hide_index=True, key=key)
        if n > SHOWN_FAILURES:
            st.caption(f"Showing the first {SHOWN_FAILURES:,} of {n:,}.")
        yield
