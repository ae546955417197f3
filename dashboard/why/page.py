"""The Why page, with tabs for one document and for all misses of a data set with their causes."""

from __future__ import annotations

from typing import Any

import streamlit as st

from poslens.attribution.evaluation.why_causes import CAUSES
from poslens.dashboard.why import one
from poslens.dashboard.widgets import links, panels, say
from poslens.dashboard.widgets.study_page import (
    Chosen,
    Opened,
    chosen_result,
    study_choices,
    study_section,
)
from poslens.dashboard.widgets.tables import chosen_row, column_settings
from poslens.studies.why.study import WHY
from poslens.studies.why.summary import remedy

TABS = ("One document", "All misses")
ANY = "any cause"


def misses_section(chosen: Chosen) -> None:
    """The causes of all misses, and the misses with the selected cause.

    Raises:
        UserError: the data set has no relevance judgments.
    """
    opened = study_section(WHY, chosen.data, chosen.models, chosen.settings, on_click=choose)
    if opened is not None and opened.summaries:
        list_misses(opened)


def choose(point: Any) -> None:
    """Select the model and the cause of the clicked bar."""
    st.session_state["why.under"], st.session_state["why.cause"] = point


def list_misses(opened: Opened) -> None:
    """The misses of a model with a cause; selecting one opens it on the other tab."""
    st.markdown("**Queries by cause**")
    left, right = st.columns(2)
    with left:
        summary = chosen_result(opened.summaries, "Model", "why.under")
    cause = right.selectbox("Cause, or click a bar", [ANY, *summary.causes], key="why.cause")
    table = WHY.tables["misses"]
    frame = table.text_frame([summary])
    if frame.empty:
        st.caption("No target document is missed.")
        return
    frame = frame.drop(columns="model")
    if cause in CAUSES:
        frame = frame[frame["cause"] == cause]
        say.caption(remedy(cause, summary.asked.spec))
        one.remedy_links({cause}, opened)
    frame = frame.reset_index(drop=True)
    texts = {item.query_id: item.query for item in summary.items.values()}
    ids = frame["query"].tolist()
    frame["query"] = [texts.get(query_id, query_id) for query_id in ids]
    st.caption(f"{len(frame):,} misses; select a row to see what would bring the document up.")
    frame.insert(0, "id", [f"{a} {b}" for a, b in zip(ids, frame["document"], strict=True)])
    row = chosen_row(
        frame.drop(columns="id").assign(id=frame["id"]),
        f"why.misses.{summary.name}.{cause}",
        "id",
        height=320,
        column_order=[name for name in frame if name != "id"],
        column_config=column_settings(table)
        | {"query": st.column_config.TextColumn(width="large")},
    )
    if row is None:
        return
    document = str(frame["document"].iloc[row])
    links.page_link(
        "why/page.py",
        f"Why {document} is missed",
        ":material/search:",
        {
            "tab": TABS[0],
            "dataset": opened.data.name,
            "models": [each.name for each in opened.summaries],
            "top": str(opened.settings.top),
            "query": str(ids[row]),
            "document": document,
        },
    )


chosen = study_choices(WHY, elsewhere=("queries", "query", "document", "evidence"))
one_tab, all_tab = st.tabs(TABS, key="tab", bind="query-params")
if chosen is not None and all_tab.open:
    with all_tab, panels.guarded():
        misses_section(chosen)
elif chosen is not None:
    with one_tab, panels.guarded():
        one.section(chosen)
