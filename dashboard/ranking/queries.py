"""The Ranking page's section on single queries: retrieved documents, and links to Explain."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from poslens.attribution.evaluation.ranking_measures import NDCG, TOP
from poslens.dashboard.widgets import links, panels, say, url_state
from poslens.dashboard.widgets.tables import chosen_row
from poslens.studies.ranking import tables
from poslens.studies.ranking.service import Measured
from poslens.studies.ranking.tables import FILTERS


def section(
    rankings: Sequence[Measured], dataset: str, models: Sequence[str], note: str = ""
) -> None:
    """Single queries with the retrieved and the relevant documents, and links that explain them
    under `models`; `note` is shown above the links."""
    st.markdown("**Query by query**")
    left, right = st.columns(2)
    by_name = {measured.name: measured for measured in rankings}
    with left:
        name = url_state.option("Ranking of", "ranking_of", list(by_name))
    ranked = by_name[name]
    with right:
        against = url_state.option(
            "Compare with",
            "ranking_against",
            ["", *(other for other in by_name if other != name)],
            lambda other: other or "none",
            help="Sorts queries by their difference in nDCG@10, largest first.",
        )
    filters = st.pills(
        "Filter queries",
        list(FILTERS),
        selection_mode="multi",
        key="filters",
        bind="query-params",
        wrap=True,
    )
    compared = by_name.get(against) if against else None
    if compared is None:
        numbers = tables.TABLES["queries"].frame([ranked])
    else:
        numbers = tables.TABLES["query_differences"].frame([compared, ranked])
    numbers = tables.filtered(numbers, filters)
    # The names are in the fields above the table.
    frame = numbers.drop(columns=["model", "against"], errors="ignore")
    frame["position"] = 100 * frame["position"].astype(float)
    st.caption(
        f"{len(frame):,} of {ranked.evaluation.n:,} queries; select a row to see its top {TOP}."
    )
    if compared is not None:
        panels.downloads(
            "ranking.differences",
            [dataset, ranked.name, compared.name],
            [ranked.provenance(), compared.provenance()],
            tables={"Numbers": lambda: numbers},
        )
    asked = chosen_row(
        frame,
        f"ranking.queries.{name}.{against}",
        "id",
        height=280,
        column_config={
            "query": st.column_config.TextColumn(width="large"),
            **{
                column: st.column_config.NumberColumn(format=form)
                for column, form in (
                    (NDCG, "%.3f"),
                    (f"{NDCG} against", "%.3f"),
                    ("difference", "%+.3f"),
                )
            },
            "rank": st.column_config.NumberColumn(help="Of the first relevant document."),
            "position": st.column_config.NumberColumn("evidence position", format="%.0f%%"),
        },
    )
    if asked is None:
        return
    query = tables.query_of(ranked, str(frame["id"].iloc[asked]))
    top = tables.top_frame(ranked, query)
    rank = tables.first_rank(ranked, query)
    where = f"first at rank {rank:,}" if rank else "not in the ranking"
    say.heading(query.text)
    st.caption(f"{len(query.relevant):,} relevant, {where}.")
    opened_row = chosen_row(
        top.drop(columns="pair"),
        f"ranking.top.{query.query_id}",
        "id",
        column_config={
            "score": st.column_config.NumberColumn(format="%.4f"),
            "relevant": st.column_config.CheckboxColumn(),
            "document": st.column_config.TextColumn(width="large"),
        },
    )
    # Models that every method supports, if there are any.
    opened = [name for name in models if name != "BM25"] or list(models)
    if note:
        say.caption(note)
    offered = dict(list(query.pairs.items())[:3])
    if opened_row is not None:
        row = top.iloc[opened_row]
        if row["pair"]:
            offered[str(row["id"])] = str(row["pair"])
        else:
            document = str(row["document"])
            links.text_link("Explain the chosen document", query.text, document, dataset, opened)
    for key, pair_id in offered.items():
        links.explain_link(f"Explain {key}", dataset, pair_id, opened)
    panels.downloads(
        "ranking.top",
        [dataset, query.query_id],
        [ranked.provenance()],
        tables={"Numbers": lambda: top},
    )
