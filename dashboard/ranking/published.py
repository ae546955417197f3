"""The Ranking page's section on published results."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from poslens.dashboard.widgets import panels, published_files
from poslens.dashboard.widgets.tables import show_table
from poslens.studies.published import measures_frame
from poslens.studies.ranking import tables
from poslens.studies.ranking.service import Measured


def section(rankings: Sequence[Measured], dataset: str) -> None:
    """Published measures next to those computed here."""
    with st.expander("Published results", key="published.beside"):
        rows = published_files.measures()
        if not rows:
            return
        settings = sorted({row.setting for row in rows})
        default = settings.index("eng-eng") if "eng-eng" in settings else 0
        setting = st.selectbox(
            "Setting",
            settings,
            index=default,
            key="published.setting",
            help="Languages of queries and documents.",
        )
        theirs = measures_frame([row for row in rows if row.setting == setting])
        ours = tables.TABLES["psi"].frame(rankings).assign(setting=dataset)
        both = pd.concat([ours[theirs.columns], theirs], ignore_index=True)
        lengths = list(dict.fromkeys(both["length"]))
        length = st.segmented_control(
            "Length",
            lengths,
            default=lengths[0],
            required=True,
            key="published.length",
            format_func=panels.plain,
        )
        show_table(both[both["length"] == length])
        st.caption(
            "Published figures are for PosIR's own corpora. For length buckets, PosIR publishes "
            "the mean over evidence bins, not over queries."
        )
