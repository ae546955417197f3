"""The Cause page's third tab: bias tests, and the document pairs that they compare."""

from __future__ import annotations

from typing import Any

import streamlit as st

from poslens.attribution.evaluation.bias_tests import TESTS, DocumentPair
from poslens.dashboard.widgets import links, panels, url_state
from poslens.dashboard.widgets.contrast import contrast_view
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.study_page import Opened, study_page
from poslens.dashboard.widgets.tables import chosen_row, column_settings
from poslens.studies.bias.study import BIAS_STUDY, provenance_of
from poslens.studies.bias.tables import BiasSummary, ScoredTest


def choose(point: Any) -> None:
    """Show the pairs that the clicked bar summarizes."""
    st.session_state["under"], st.session_state["test"] = point


def section() -> None:
    """The study's page without its heading, followed by the pairs of one test."""
    opened = study_page(BIAS_STUDY, on_click=choose, heading=False)
    if opened is not None and opened.summaries:
        behind(opened)


@fragment()
def behind(page: Opened) -> None:
    """The pairs of one test and model, and both documents of the selected pair."""
    st.markdown("**Pairs of one test**")
    left, right = st.columns(2)
    summaries: tuple[BiasSummary, ...] = page.summaries
    test = left.selectbox(
        "Test (or click a bar)",
        list(dict.fromkeys(test.name for summary in summaries for test in summary.tests)),
        key="test",
        bind="query-params",
    )
    under = right.selectbox(
        "Under",
        list(dict.fromkeys(summary.model.spec.name for summary in summaries)),
        key="under",
        bind="query-params",
    )
    summary = next((summary for summary in summaries if summary.model.spec.name == under), None)
    tested = summary.of(test or "") if summary else None
    if summary is None or tested is None:
        st.info("This model's scores for this test are not computed yet.")
        return
    st.caption(f"d1: {TESTS[tested.result.test].d1}. d2: {TESTS[tested.result.test].d2}.")
    table = BIAS_STUDY.tables["pairs"]
    rows = table.text_frame([summary])
    of_test = (rows["test"] == tested.pairs.test) & (rows["variant"] == tested.pairs.variant)
    rows = rows[of_test].drop(columns=["model", "test", "variant"]).reset_index(drop=True)
    row = chosen_row(
        rows,
        f"bias.pairs.{under}.{test}",
        "pair",
        height=260,
        column_config=column_settings(table.meanings(), table.formats()),
    )
    panels.downloads(
        "bias.pairs",
        [page.data.name, str(test), str(under)],
        [provenance_of(summary.model, [tested])],
        tables={"Numbers": lambda: rows},
    )
    if row is not None:
        url_state.put("item", str(rows["pair"].iloc[row]))
    item = url_state.get("item")
    pair = next((p for p in tested.pairs.pairs if p.item_id == item), None)
    if pair is None or pair.item_id not in tested.scores:
        st.caption("Select a row to see both documents.")
        return
    contrast(page, summary, tested, pair)


def contrast(page: Opened, summary: BiasSummary, tested: ScoredTest, pair: DocumentPair) -> None:
    """Both documents side by side: the contribution of each token to s(d1) - s(d2)."""
    spec = summary.model.spec
    both = tested.scores[pair.item_id]
    scores = (both.first, both.second)
    method = contrast_view(
        "bias", page.compute, spec, pair.first, pair.second, pair.item_id, scores
    )
    texts = (pair.source, pair.first.query)
    source = next((p for p in page.data.pairs if (p.document, p.query) == texts), None)
    if source is not None and method is not None:
        links.other_views("cause", page.data.name, source.pair_id, [spec.name], method)
