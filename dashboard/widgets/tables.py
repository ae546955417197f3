"""Tables of which the reader chooses a row, and the list of what gave no result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.drawing.plain import plain

SHOWN_FAILURES = 1000


def rows_key(key: str, ids: Sequence[str]) -> str:
    """The key of a table with these rows.

    Streamlit keeps a selection by the key alone. A table of other rows is another widget: its
    selection must not point into the old rows.
    """
    return f"{key}.{hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:12]}"


def chosen_row(frame: pd.DataFrame, key: str, ids: str, **options: Any) -> int | None:
    """Show a table and return the position of the row that is chosen; None where there is none.

    The column `ids` tells the rows apart; `options` are those of `st.dataframe`. What a browser
    sends of a row that the table does not have chooses nothing.
    """
    event = st.dataframe(
        frame,
        hide_index=True,
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
    said = f"{n:,} {unit}{'' if n == 1 else 's'}{f' of {of}' if of else ''} gave no result"
    with st.expander(plain(said)):
        st.dataframe(frame.head(SHOWN_FAILURES), hide_index=True, key=key)
        if n > SHOWN_FAILURES:
            st.caption(f"The first {SHOWN_FAILURES:,} of {n:,}.")
        yield
