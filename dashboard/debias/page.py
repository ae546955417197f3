"""The Debias page: the study, position effects before debiasing, and the queries that changed."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.dashboard.server import own_texts
from poslens.dashboard.widgets import links, panels, say
from poslens.dashboard.widgets.study_page import study_choices, study_section
from poslens.dashboard.widgets.tables import chosen_row, column_settings
from poslens.studies.debias.study import DEBIAS
from poslens.studies.debias.summary import DebiasSummary
from poslens.studies.positions.study import POSITIONS

BEFORE = (
    "The results below are those **before debiasing**, on pairs of the whole data set (not only "
    "the held-out half)."
)
SHARED = (
    "The trained model is stored in the server's model folder, where everyone with access to the "
    "server can use it, even after your session ends. Its description names your file."
)
QUERIES = DEBIAS.tables["queries"]


def queries_section(summaries: Sequence[DebiasSummary], dataset: str) -> None:
    """The queries with nDCG@10 before and after a change to the model."""
    changed = {each.name: each for each in summaries if each.plain and each.ranked}
    if not changed:
        return
    best = next((name for name, each in changed.items() if each.recommended or each.tested), None)
    names = list(changed)
    selected = st.selectbox(
        "Changed model",
        names,
        index=names.index(best) if best else 0,
        key=f"debias.changed.{best}",
        help="The recommended or tested model comes first.",
    )
    summary = changed[selected]
    frame = QUERIES.frame([summary])
    helped, harmed = int((frame["change"] > 0).sum()), int((frame["change"] < 0).sum())
    say.heading(f"Which queries {selected} helps, and which it harms")
    st.caption(
        f"{NDCG} rises for {helped:,} of {len(frame):,} queries and falls for {harmed:,}; select a "
        "row to open its pair under both models."
    )
    row = chosen_row(
        QUERIES.text_frame([summary]),
        f"debias.queries.{selected}",
        "id",
        height=280,
        column_config=column_settings(QUERIES),
    )
    if row is not None and frame["pair"].iloc[row] and summary.plain:
        links.explain_link(
            "Explain the pair under both models",
            dataset,
            str(frame["pair"].iloc[row]),
            [summary.plain.name, selected],
        )


if (chosen := study_choices(DEBIAS)) is not None:
    with panels.guarded():
        if chosen.settings.steps and own_texts.private(chosen.data.name):
            st.info(SHARED)
        opened = study_section(DEBIAS, chosen.data, chosen.models, chosen.settings)
        if opened is not None and opened.summaries:
            queries_section(opened.summaries, opened.data.name)
        elif opened is not None and opened.settings.steps and chosen.data.pairs.n_with_evidence:
            st.markdown(BEFORE)
            study_section(POSITIONS, chosen.data, chosen.models, POSITIONS.parameters.settings())
