"""The Cause page, with tabs for interventions on one pair, interventions on a data set, and bias
tests."""

from __future__ import annotations

import streamlit as st

from poslens.attribution.interventions.ablation import REPLACEMENTS, ablation_method
from poslens.dashboard.cause import bias_tests, data_set, pair
from poslens.dashboard.widgets import choices, panels

TABS = ("One pair", "Data set", "Bias tests")

# Version 0.1 linked to interventions without a query in this way.
if st.query_params.get("documents") == "true" and "tab" not in st.query_params:
    st.session_state["tab"] = st.query_params["tab"] = TABS[1]
    del st.query_params["documents"]

st.markdown("# Cause: does moving the evidence change the score?")
pair_tab, data_tab, bias_tab = st.tabs(TABS, key="tab", bind="query-params")
if bias_tab.open:
    with bias_tab:
        bias_tests.section()
    st.stop()

data = method = None
with st.sidebar:
    with panels.guarded():
        data = choices.data_set(with_uploader=not pair_tab.open)
    models = choices.models(["MiniLM-primacy", "MiniLM-recency"])
    if pair_tab.open:
        with panels.guarded():
            method = choices.method(models, sentences_for_endpoints=True)
    with st.expander("Ablation settings"):
        by = st.segmented_control(
            "Ablation",
            REPLACEMENTS,
            default="delete",
            key="by",
            bind="query-params",
            required=True,
            help="How a part is removed. delete: the text after it moves up. mask: its tokens "
            "become padding. filler: neutral text of as many tokens replaces it.",
        )
ablation = ablation_method(by or "delete")
if pair_tab.open:
    with pair_tab:
        st.caption(
            "The chart shows the score with the evidence moved to each position of the document. "
            "The other sentences keep their order, so any change in the score is due to the move: "
            "to position, or to lost context."
        )
        if data is not None and method is not None:
            with panels.guarded():
                pair.section(data, models, method, ablation)
else:
    with data_tab:
        if not models:
            st.info("Select a model.")
        elif data is not None:
            with panels.guarded():
                data_set.section(data, models, ablation)
