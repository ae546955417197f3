"""The Why page, with tabs for one document and for all misses of a data set."""

from __future__ import annotations

import streamlit as st

from poslens.dashboard.why import misses, one
from poslens.dashboard.widgets import panels
from poslens.dashboard.widgets.study_page import study_choices
from poslens.studies.why.study import WHY

TABS = ("One document", "All misses")

chosen = study_choices(WHY, elsewhere=("queries", "query", "document", "evidence"))
one_tab, all_tab = st.tabs(TABS, key="tab", bind="query-params")
if chosen is not None and all_tab.open:
    with all_tab, panels.guarded():
        misses.section(chosen)
elif chosen is not None:
    with one_tab, panels.guarded():
        one.section(chosen)
