"""Compare: the same pair, and the same data set, under two models."""

from __future__ import annotations

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.types import Method
from poslens.dashboard.explain.view import explained, pair_view
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.pair_picker import choose_pair


@fragment()
def one_pair(data: DataSet, names: tuple[str, str], method: Method) -> None:
    """A part of the page that runs by itself: the next pair leaves the sidebar alone."""
    pair = choose_pair(data, names, method)
    if pair is not None and (results := explained([pair], names, method)):
        pair_view(results, method, "compare", comparing=True)


data = method = None
with st.sidebar:
    with panels.guarded():
        data = choices.data_set(with_uploader=False)
    first = choices.model("Model A", "a", "MiniLM-primacy")
    second = choices.model("Model B", "b", "MiniLM-recency", at=1)
    with panels.guarded():
        method = choices.method([first, second])
st.markdown("# Compare: how do two models read the same pair?")
if len(choices.distinct([first, second])) < 2:
    st.info("Choose two different models to compare.")
elif data is not None and method is not None:
    one_pair(data, (first, second), method)
