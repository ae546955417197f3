"""The Methods page, with tabs for deletion and insertion tests of a pair and of a data set, the
agreement of methods with interventions, simulatability, and methods' own preferences."""

from __future__ import annotations

import streamlit as st

from poslens.attribution.methods import METHODS, make_method
from poslens.dashboard.methods import data_set, pair, simulatability
from poslens.dashboard.widgets import choices, panels, say
from poslens.dashboard.widgets.study_page import study_page
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
        study_page(PREFERENCES, heading=False)
    st.stop()
data = None
with st.sidebar:
    with panels.guarded():
        data = choices.data_set(with_uploader=not pair_tab.open)
    models = choices.models(["MiniLM"])
    names = choices.methods(models, [name for name, entry in METHODS.items() if not entry.slow])
methods = {name: make_method(name) for name in names}
if data is None:
    st.stop()
if not models or not methods:
    st.info("Select a model and a method.")
    st.stop()
if agreement_tab.open:
    with agreement_tab, panels.guarded():
        data_set.section(AGREEMENT, data, models, methods)
    st.stop()
if data_tab.open:
    with data_tab, panels.guarded():
        data_set.section(FAITHFULNESS, data, models, methods)
    st.stop()
with pair_tab, panels.guarded():
    say.sentence(FAITHFULNESS.reads)
    pair.section(data, models, methods)
