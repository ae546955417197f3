"""The Debias page, with tabs for self-distillation and attention calibration."""

from __future__ import annotations

import streamlit as st

from poslens.dashboard.debias import calibration
from poslens.dashboard.widgets import panels
from poslens.dashboard.widgets.study_page import study_choices, study_section
from poslens.studies.debias.study import DEBIAS
from poslens.studies.positions.study import POSITIONS

BEFORE = "**Before debiasing**, on pairs of the whole data set (not only the held-out half):"


def self_distillation() -> None:
    """The study `debias`; until it has a result, the position effects before debiasing."""
    if (chosen := study_choices(DEBIAS, heading=False)) is None:
        return
    with panels.guarded():
        opened = study_section(DEBIAS, chosen.data, chosen.models, chosen.settings)
        if opened is None or opened.summaries:
            return
        st.markdown(BEFORE)
        study_section(POSITIONS, chosen.data, chosen.models, POSITIONS.parameters.settings())


TABS = ("Self-distillation", "Attention calibration")

# Older links to a calibration setting don't name the tab.
if "model" in st.query_params and "tab" not in st.query_params:
    st.session_state["tab"] = st.query_params["tab"] = TABS[1]

st.markdown("# Debias: can position bias be removed?")
training_tab, calibration_tab = st.tabs(TABS, key="tab", bind="query-params")
if training_tab.open:
    with training_tab:
        self_distillation()
else:
    with calibration_tab:
        calibration.section()
