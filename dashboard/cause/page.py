"""The Cause page, with tabs for interventions on one pair, interventions on a data set, and bias
tests with the document pairs that they compare."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from poslens.attribution.evaluation.bias_tests import TESTS, DocumentPair
from poslens.attribution.interventions.ablation import REPLACEMENTS, ablation_method
from poslens.dashboard.cause import data_set, pair
from poslens.dashboard.widgets import choices, links, panels, say, url_state
from poslens.dashboard.widgets.contrast import contrast_view
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.study_page import Opened, study_page
from poslens.dashboard.widgets.tables import chosen_row, column_settings
from poslens.studies.bias.study import BIAS_STUDY, provenance_of
from poslens.studies.bias.tables import BiasSummary, ScoredTest
from poslens.studies.cause.study import CAUSE

TABS = ("One pair", "Data set", "Bias tests")


def choose(point: Any) -> None:
    """Show the pairs that the clicked bar summarizes."""
    st.session_state["under"], st.session_state["test"] = point


def bias_tests() -> None:
    """The study's page without its heading, followed by the pairs of one test."""
    opened = study_page(BIAS_STUDY, on_click=choose)
    if opened is not None and opened.summaries:
        pairs_of_test(opened)


@fragment()
def pairs_of_test(page: Opened) -> None:
    """The pairs of one test and model, and both documents of the selected pair."""
    st.markdown("**Pairs of one test**")
    left, right = st.columns(2)
    summaries: tuple[BiasSummary, ...] = page.summaries
    titles = {test.name: test.pairs.title for summary in summaries for test in summary.tests}
    with left:
        test = url_state.option(
            "Test", "test", list(titles), titles.__getitem__, help="Or click a bar."
        )
    names = list(dict.fromkeys(summary.name for summary in summaries))
    with right:
        under = url_state.option("Model", "under", names)
    summary = next((summary for summary in summaries if summary.name == under), None)
    tested = summary.of(test) if summary else None
    if summary is None or tested is None:
        st.info("This model's scores for this test are not computed yet.")
        return
    about = TESTS[tested.result.test]
    say.caption(f"{about.title}: d1: {about.d1}. d2: {about.d2}.")
    table = BIAS_STUDY.tables["pairs"]
    rows = _of_test(table.text_frame([summary]), tested)
    row = chosen_row(
        rows,
        f"bias.pairs.{under}.{test}",
        "pair",
        height=260,
        column_config=column_settings(table),
    )
    panels.downloads(
        "bias.pairs",
        [page.data.name, test, under],
        [provenance_of(summary.model, [tested])],
        tables={"Numbers": lambda: _of_test(table.frame([summary]), tested)},
    )
    if row is not None:
        url_state.put("item", str(rows["pair"].iloc[row]))
    item = url_state.get("item")
    both = next((p for p in tested.pairs.pairs if p.item_id == item), None)
    if both is None or both.item_id not in tested.scores:
        st.caption("Select a row to see both documents.")
        return
    contrast(page, summary, tested, both)


def _of_test(rows: pd.DataFrame, tested: ScoredTest) -> pd.DataFrame:
    """The rows of one test, without the columns that it has in common."""
    names = (tested.pairs.test, TESTS[tested.pairs.test].title)  # in files, and on pages
    chosen = rows["test"].isin(names) & (rows["variant"] == tested.pairs.variant)
    common = ["model", "test", "title", "variant"]
    return rows[chosen].drop(columns=common, errors="ignore").reset_index(drop=True)


def contrast(page: Opened, summary: BiasSummary, tested: ScoredTest, both: DocumentPair) -> None:
    """Both documents side by side: the contribution of each token to s(d1) - s(d2)."""
    spec, scored = summary.model.spec, tested.scores[both.item_id]
    scores = (scored.first, scored.second)
    method = contrast_view(
        "bias", page.compute, spec, both.first, both.second, both.item_id, scores
    )
    texts = (both.source, both.first.query)
    source = next((p for p in page.data.pairs if (p.document, p.query) == texts), None)
    if source is not None and method is not None:
        links.other_views("cause", page.data, source.pair_id, [spec.name], method)


# Version 0.1 linked to interventions without a query in this way.
if st.query_params.get("documents") == "true" and "tab" not in st.query_params:
    st.session_state["tab"] = st.query_params["tab"] = TABS[1]
    del st.query_params["documents"]

st.markdown("# Cause: which changes to a document change its score?")
pair_tab, data_tab, bias_tab = st.tabs(TABS, key="tab", bind="query-params")
if bias_tab.open:
    with bias_tab:
        bias_tests()
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
            by = choices.one_of("Ablation", REPLACEMENTS, "by", help=CAUSE.parameters["by"].help)
if pair_tab.open:
    with pair_tab:
        st.caption(
            "The chart shows the score with the evidence moved to each position of the document. "
            "The other sentences keep their order, so any change in the score is due to the move: "
            "to position, or to lost context."
        )
        if data is not None and method is not None:
            with panels.guarded():
                pair.section(data, models, method, ablation_method(by))
else:
    with data_tab:
        if not models:
            st.info("Select a model.")
        elif data is not None:
            with panels.guarded():
                data_set.section(data, models)
