"""The Explain page: the contribution of each token to one pair's score, for one to four models."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.types import Method
from poslens.dashboard.explain.view import explained, pair_view
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.pair_picker import choose_pair
from poslens.heatmap.data import MAX_COLUMNS


@fragment()
def one_pair(data: DataSet, names: Sequence[str], method: Method) -> None:
    """One pair for the selected models. A fragment, so that selecting another pair doesn't rerun
    the sidebar."""
    pair = choose_pair(data, names, method)
    if pair is None:
        return
    shown = [pair]
    source = choices.data_of(pair)
    other = source.version_of(pair) if source else None
    room = 2 * len(names) <= MAX_COLUMNS
    if source and other and panels.other_version(source.version_name, other, room):
        shown.append(other)
    if results := explained(shown, names, method):
        pair_view(results, method, "explain")


data = method = None
with st.sidebar:
    with panels.guarded():
        data = choices.data_set(with_uploader=False)
    names = choices.models(["MiniLM"])
    with panels.guarded():
        method = choices.method(names)
st.markdown("# Explain: which words drive the score of a query–document pair?")
if not names:
    st.info("Select a model in the sidebar.")
elif data is not None and method is not None:
    one_pair(data, names, method)
