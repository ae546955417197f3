"""The Methods page's tabs about a data set: faithfulness, and agreement with interventions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.dashboard.widgets import choices, say
from poslens.dashboard.widgets.reading_panel import what_is_read
from poslens.dashboard.widgets.study_page import study_section, study_settings
from poslens.studies.faithfulness.study import FAITHFULNESS
from poslens.study import Study


def section(
    study: Study[Any, Any, Any], data: DataSet, models: Sequence[str], methods: Iterable[str]
) -> None:
    """A study of `methods`, which the sidebar offers as it does for one pair."""
    with st.sidebar:
        settings = study_settings(study, data, elsewhere=("methods",))
    settings = study.parameters.settings({**settings, "methods": list(methods)})
    say.sentence(study.reads)
    opened = study_section(study, data, models, settings)
    if opened is not None and study is FAITHFULNESS:
        specs = [choices.spec(name, data.name) for name in models]
        what_is_read(specs, opened.corpus.pairs, study.name)
