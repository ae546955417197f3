"""Paired differences of the models that a page shows side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from poslens.attribution.evaluation.comparison import TEST
from poslens.dashboard.widgets import panels
from poslens.dashboard.widgets.tables import show_table
from poslens.paired import (
    TITLE,
    DifferenceRow,
    MeasuredModel,
    difference_rows,
    difference_sentences,
    paired_differences,
)
from poslens.rows import frame_of, text_frame_of


def show_differences(models: Sequence[MeasuredModel], key: str, remark: str = "") -> None:
    """A sentence for each pair of models, and the table; nothing for one model. `remark` explains
    the measures."""
    differences = paired_differences(models)
    if not differences:
        return
    st.markdown(f"**{TITLE}**")
    for sentence in difference_sentences(differences):
        st.markdown(panels.plain(sentence))
    show_table(text_frame_of(difference_rows(differences)), key=key)
    st.caption(panels.plain(f"{remark} {TEST[0].upper()}{TEST[1:]}.".lstrip()))


def differences_table(models: Sequence[MeasuredModel]) -> dict[str, Callable[[], pd.DataFrame]]:
    """The table for files, by its title; empty for one model."""
    if not paired_differences(models):
        return {}
    return {TITLE: lambda: frame_of(DifferenceRow, difference_rows(paired_differences(models)))}
