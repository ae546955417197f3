"""The Methods page, with tabs for deletion and insertion tests of a pair and of a data set, the
agreement of methods with interventions, simulatability, and methods' own preferences."""

from __future__ import annotations

import streamlit as st

from poslens.attribution.methods import METHODS, make_method
from poslens.dashboard.methods import pair, simulatability
from poslens.dashboard.widgets import choices, panels, say
from poslens.dashboard.widgets.study_page import study_page, study_with
from poslens.studies.cause.agreement import AGREEMENT
from poslens.studies.faithfulness.study import FAITHFULNESS
from poslens.studies.preferences import PREFERENCES

TABS = ("One pair", "Data set", "Agreement with interventions", "Simulatability", "Preferences")


st.markdown("# Methods: how faithful is each attribution method?")
pair_tab, data_tab, agreement_tab, simulatability_tab, preferences_tab = st.tabs(
    TABS, key="tab", bind="query-params"
)
if simulatability_tab.open:
    with simulatability_tab:
        simulatability.section()
    st.stop()
if preferences_tab.open:
    with preferences_tab:
        study_page(PREFERENCES)
    st.stop()
chosen_data = None
with st.sidebar:
    with panels.guarded():
        chosen_data = choices.data_set(with_uploader=not pair_tab.open)
    models = choices.models(["MiniLM"])
    names = choices.methods(models, [name for name, entry in METHODS.items() if not entry.slow])
methods = {name: make_method(name) for name in names}
if chosen_data is None:
    st.stop()
data = chosen_data
if not models or not methods:
    st.info("Select a model and a method.")
    st.stop()
if agreement_tab.open:
    with agreement_tab, panels.guarded():
        study_with(AGREEMENT, data, models, {"methods": names}, False)
    st.stop()
if data_tab.open:
    with data_tab, panels.guarded():
        study_with(FAITHFULNESS, data, models, {"methods": names}, True)
    st.stop()
with pair_tab, panels.guarded():
    say.sentence(FAITHFULNESS.reads)
    pair.section(data, models, methods)
