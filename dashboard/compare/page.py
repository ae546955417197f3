"""The Compare page, with tabs for one pair and for a data set."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from poslens.attribution.curves.published import PublishedCurves
from poslens.attribution.datasets import DataSet
from poslens.attribution.types import Method
from poslens.dashboard.explain.view import explained, pair_view
from poslens.dashboard.widgets import choices, panels, published_files, say
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.pair_picker import choose_pair
from poslens.dashboard.widgets.study_page import study_section
from poslens.studies.differences import DIFFERENCES


@fragment()
def one_pair(
    data: DataSet, names: tuple[str, str], method: Method, published: Sequence[PublishedCurves]
) -> None:
    """One pair for both models. A fragment, so that selecting another pair doesn't rerun the
    sidebar."""
    pair = choose_pair(data, names, method)
    if pair is not None and (results := explained([pair], names, method)):
        pair_view(results, method, "compare", comparing=True, published=published)


TABS = ("One pair", "Data set")

data = method = None
with st.sidebar:
    with panels.guarded():
        data = choices.data_set(with_uploader=False)
    first = choices.model("Model A", "a", "MiniLM-primacy")
    second = choices.model("Model B", "b", "MiniLM-recency", at=1)
    with panels.guarded():
        method = choices.method([first, second])
    published = published_files.curves()
st.markdown("# Compare: how do two models differ?")
if len(choices.distinct([first, second])) < 2:
    st.info("Select two different models to compare.")
elif data is not None and method is not None:
    pair_tab, data_tab = st.tabs(TABS, key="tab", bind="query-params")
    if pair_tab.open:
        with pair_tab:
            one_pair(data, (first, second), method, published)
    else:
        with data_tab, panels.guarded():
            say.heading(DIFFERENCES.question)
            say.sentence(DIFFERENCES.reads)
            settings = DIFFERENCES.parameters.settings()
            # Each model is compared with the one before: A minus B, as for one pair.
            study_section(DIFFERENCES, data, (second, first), settings)
