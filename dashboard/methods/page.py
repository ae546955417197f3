"""The Methods page, with tabs for deletion and insertion tests of a pair and of a data set, the
agreement of methods with interventions, simulatability, and methods' own preferences."""

from __future__ import annotations

from typing import Any

import streamlit as st

from poslens.attribution.methods import METHODS, make_method
from poslens.dashboard.methods import pair, simulatability
from poslens.dashboard.widgets import choices, panels, say
from poslens.dashboard.widgets.reading_panel import what_is_read
from poslens.dashboard.widgets.study_page import study_page, study_section, study_settings
from poslens.studies.cause.agreement import AGREEMENT
from poslens.studies.faithfulness.study import FAITHFULNESS
from poslens.studies.preferences import PREFERENCES
from poslens.study import Study

TABS = ("One pair", "Data set", "Agreement with interventions", "Simulatability", "Preferences")


def data_set_section(study: Study[Any, Any, Any]) -> None:
    """A study of the methods that the sidebar offers."""
    with st.sidebar:
        settings = study_settings(study, data, elsewhere=("methods",))
    settings = study.parameters.settings({**settings, "methods": names})
    say.sentence(study.reads)
    opened = study_section(study, data, models, settings)
    if opened is not None and study is FAITHFULNESS:
        specs = [choices.spec(name, data.name) for name in models]
        what_is_read(specs, opened.corpus.pairs, study.name)


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
        data_set_section(AGREEMENT)
    st.stop()
if data_tab.open:
    with data_tab, panels.guarded():
        data_set_section(FAITHFULNESS)
    st.stop()
with pair_tab, panels.guarded():
    say.sentence(FAITHFULNESS.reads)
    pair.section(data, models, methods)
