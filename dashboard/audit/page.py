"""The Audit page, with tabs for unretrieved sentences and for the chunk planner."""

from __future__ import annotations

import streamlit as st

from poslens.dashboard.audit import sentences
from poslens.dashboard.widgets.study_page import study_page
from poslens.studies.chunks.study import CHUNKS

TABS = ("Unretrieved sentences", "Chunk planner")

st.markdown("# Audit: what can't an index retrieve?")
sentences_tab, chunks_tab = st.tabs(TABS, key="tab", bind="query-params")
if chunks_tab.open:
    with chunks_tab:
        study_page(CHUNKS, heading=False)
else:
    with sentences_tab:
        sentences.section()
