"""The Methods page's second tab: deletion and insertion tests averaged over a data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.dashboard.widgets import choices
from poslens.dashboard.widgets.reading_panel import what_is_read
from poslens.dashboard.widgets.study_page import study_section, study_settings
from poslens.studies.faithfulness.study import FAITHFULNESS


def section(data: DataSet, models: Sequence[str], methods: Iterable[str]) -> None:
    """The tests of `methods`, which the sidebar offers as it does for one pair."""
    with st.sidebar:
        settings = study_settings(FAITHFULNESS, data, elsewhere=("methods",))
    settings = FAITHFULNESS.parameters.settings({**settings, "methods": list(methods)})
    opened = study_section(FAITHFULNESS, data, models, settings)
    if opened is not None:
        specs = [choices.spec(name, data.name) for name in models]
        what_is_read(specs, opened.corpus.pairs, FAITHFULNESS.name)
