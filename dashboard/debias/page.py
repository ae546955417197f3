"""The Debias page: one tab for training a model's position bias away, one for attention
calibration."""

from __future__ import annotations

import streamlit as st

from poslens.dashboard.debias import calibration
from poslens.dashboard.widgets.study_page import study_page
from poslens.studies.debias.study import DEBIAS

TABS = ("Self-distillation", "Attention calibration")

# Links to a calibration setting that don't name a tab.
if "model" in st.query_params and "tab" not in st.query_params:
    st.session_state["tab"] = st.query_params["tab"] = TABS[1]

st.markdown("# Debias: can position bias be removed?")
training_tab, calibration_tab = st.tabs(TABS, key="tab", bind="query-params")
if training_tab.open:
    with training_tab:
        study_page(DEBIAS, heading=False)
else:
    with calibration_tab:
        calibration.section()
