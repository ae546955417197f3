"""Paired differences of the models that a page shows side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from poslens.attribution.evaluation.comparison import TEST, TEST_BY_ERROR
from poslens.dashboard.widgets import say
from poslens.dashboard.widgets.tables import column_settings, show_table
from poslens.paired import (
    TITLE,
    DifferenceRow,
    PairedDifference,
    difference_rows,
    difference_sentences,
)
from poslens.rows import Table

TABLE: Table[Any] = Table(DifferenceRow, difference_rows, TITLE, joint=True)


def show_differences(differences: Sequence[PairedDifference], key: str) -> None:
    """A sentence for each pair of models, the table, and the margins of equivalence; nothing
    without differences."""
    if not differences:
        return
    say.heading(TITLE)
    for sentence in difference_sentences(differences):
        say.sentence(sentence)
    show_table(
        TABLE.text_frame(differences),
        key=key,
        column_config=column_settings(TABLE.meanings(), TABLE.formats()),
    )
    margins = dict.fromkeys(f"{each.title} {each.comparison.margin:g}" for each in differences)
    by_error = all(each.comparison.by_error for each in differences)
    test = TEST_BY_ERROR if by_error else TEST
    say.caption(f"{test}. Margins of equivalence: {', '.join(margins)}.")


def differences_table(
    differences: Sequence[PairedDifference],
) -> dict[str, Callable[[], pd.DataFrame]]:
    """The table for files, by its title; empty without differences."""
    if not differences:
        return {}
    return {TITLE: lambda: TABLE.frame(differences)}
