"""Ranking: what a data set's corpus search is worth, by where the evidence stands."""

from __future__ import annotations

from urllib.parse import urlencode

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from attribution.errors import UserError
from attribution.methods import make_method
from attribution.ranking import NDCG, TOP
from attribution.retrievers import registry
from attribution.types import Provenance
from dashboard import choices, figures, panels, published_files, rankings, url
from dashboard.compute import DataSetCurve, Run, service
from dashboard.figures import Style
from dashboard.publications import measures_frame
from dashboard.ranking_figures import evidence_bins, length_buckets
from dashboard.rankings import Ranked, Setup

WHOLE, OWN = "all documents", "the query's own corpus"
SALIENCY = make_method("saliency")
WIDTH = 450

setup = None
with st.sidebar:
    with panels.guarded():
        data = choices.data_set()
    names = choices.models(["MiniLM-primacy", "MiniLM", "MiniLM-recency", "BM25"])
    with panels.guarded():
        collection = rankings.collection_of(data)
        own_corpus = False
        if len(collection.parts) > 1:
            where = st.selectbox(
                "Search in", [WHOLE, OWN], key="searched", bind="query-params",
                help="PosIR's own figures are of each query in the corpus of its domain and "
                "language; searching all documents is harder and shows language bias.",
            )  # fmt: skip
            own_corpus = where == OWN
        first_stage = None
        resolved = [registry.known().get(name) for name in names]
        if any(one is not None and rankings.needs_first_stage(one) for one in resolved):
            first = choices.model("First stage of rerankers", "first", "BM25")
            first_stage = choices.spec(first, data.name)
        setup = Setup(collection, own_corpus, first_stage)
if setup is None:
    st.stop()
the_setup = setup

with panels.guarded():
    survey = the_setup.collection.survey
    st.markdown(
        f"#### Ranking by the evidence's place · {panels.plain(data.title)}\n"
        f"{len(the_setup.collection.queries):,} queries, {survey.n:,} documents, searched exactly"
    )
    rejected = [*the_setup.collection.rejected, *survey.rejected]
    if rejected:
        with st.expander(f"{len(rejected):,} rows are no queries, judgements or documents"):
            st.dataframe(
                pd.DataFrame([(r.file, r.row, r.reason) for r in rejected[:1000]],
                             columns=["file", "row", "reason"]), hide_index=True,
            )  # fmt: skip
if not names:
    st.info("Choose a model in the sidebar.")
    st.stop()


def run_of(name: str) -> Run | None:
    """The model's run, if there was one."""
    return rankings.run_of(service(), choices.spec(name, data.name), the_setup)


def start(name: str) -> None:
    """Rank with this model."""
    try:
        rankings.start(service(), choices.spec(name, data.name), the_setup)
    except UserError as error:
        st.session_state["ranking.error"] = str(error)


def stop(name: str) -> None:
    """End the model's run after the batch at hand; what it has is kept."""
    if (run := run_of(name)) is not None:
        run.stop()


def is_active() -> bool:
    """Whether any of the models is ranking."""
    for name in names:
        try:
            run = run_of(name)
        except UserError:
            continue
        if run is not None and run.active:
            return True
    return False


def status_row(name: str) -> Ranked | None:
    """One model's progress and button; its rankings where they are complete."""
    found = rankings.ranked(service(), choices.spec(name, data.name), the_setup)
    if found is not None:
        return found
    run = run_of(name)
    label, bar, button = st.columns([3, 6, 2], vertical_alignment="center")
    label.markdown(f"**{panels.plain(name)}**")
    if run is not None and run.active:
        progress = run.progress
        text = f"{run.stage} · {progress.done:,} of {progress.total:,}"
        if progress.remaining_seconds is not None:
            text += f" · about {progress.remaining_seconds:.0f} s left"
        text += " · stopping" if run.stopping else ""
        share = min(1.0, progress.done / max(1, progress.total))
        bar.progress(share, text=panels.plain(text))
        button.button("Stop", key=f"stop.{name}", on_click=stop, args=(name,), width="stretch")
        return None
    again = run is not None and run.progress.stopped
    bar.caption("Stopped; what was computed is kept." if again else "Not ranked yet.")
    button.button("Resume" if again else "Rank", key=f"start.{name}", on_click=start, args=(name,),
                  type="primary", width="stretch")  # fmt: skip
    if run is not None and run.error:
        st.error(panels.plain(run.error))
    return None


def measures_table(found: list[Ranked]) -> None:
    """Measures with their intervals, one row a model."""
    st.dataframe(
        rankings.measures_text(found), hide_index=True,
        column_config={
            "same language": st.column_config.TextColumn(
                help="Share of the top 10 in the query's language; beside it the share of the "
                "searched documents that are."),
            "in corpus": st.column_config.NumberColumn(format="%.3f"),
            "without a result": st.column_config.NumberColumn(
                help="Queries for which nothing was found; they count as 0."),
        },
    )  # fmt: skip


def provenance(found: list[Ranked]) -> list[Provenance]:
    """Where the numbers come from, a line for each model."""
    return [one.provenance() for one in found]


def side_by_side() -> tuple[DeltaGenerator, DeltaGenerator]:
    """Two places beside each other, or one above the other where there is no room."""
    row = st.container(horizontal=True)
    return row.container(width=WIDTH), row.container(width=WIDTH)


def profile_section(found: list[Ranked]) -> None:
    """nDCG over the evidence's place, saliency of the same pairs, length buckets and PSI."""
    profiles = {
        one.model.spec.name: one.evaluation.profile
        for one in found
        if one.evaluation.profile is not None
    }
    if not profiles:
        st.info("This data set does not say where its evidence stands, so there is no PSI.")
        return
    buckets = {one.model.spec.name: one.evaluation.buckets for one in found}
    has_buckets = any(buckets.values())

    def draw_bins(style: Style):
        """nDCG over evidence bins."""
        return evidence_bins(profiles, style, provenance=provenance(found))

    def draw_buckets(style: Style):
        """nDCG over length buckets."""
        return length_buckets(buckets, style, provenance=provenance(found))

    style = panels.screen_style(width_px=WIDTH, height_px=380)
    left, right = side_by_side()
    with left:
        st.markdown("**nDCG@10 by where the evidence stands**")
        panels.show(draw_bins(style), "ranking.bins", "nDCG@10 over 20 bins of the evidence")
    with right:
        st.markdown("**Saliency of the same pairs**")
        saliency_section(list(profiles), style)
    left, right = side_by_side()
    with left:
        if has_buckets:
            st.markdown("**nDCG@10 by document length**")
            panels.show(draw_buckets(style), "ranking.buckets", "nDCG@10 in length buckets")
    with right:
        st.markdown("**Position sensitivity (PSI)**")
        table = rankings.psi_frame(found)
        st.dataframe(
            table, hide_index=True, height=350,
            column_config={
                name: st.column_config.NumberColumn(format="%.3f")
                for name in ("PSI", "PSI by chance", "p", NDCG, f"{NDCG}, mean of bins")
            },
        )  # fmt: skip
    st.caption(
        "PSI is 1 minus the worst over the best of 20 bins' mean nDCG@10; empty bins are left out. "
        "Few queries a bin raise it without any bias: PSI by chance is its mean when the same "
        "queries' positions are shuffled, p the share of shuffles that reach it."
    )
    drawings = {"Evidence bins": draw_bins} | ({"Lengths": draw_buckets} if has_buckets else {})
    panels.downloads("ranking.psi", [data.name, "psi"], provenance(found),
                     figures=drawings, frame=rankings.bins_frame(found))  # fmt: skip


def saliency_section(models: list[str], style: Style) -> None:
    """Stored saliency curves of the data set's pairs, and who has none."""
    curves: list[DataSetCurve] = []
    without = []
    for name in models:
        try:
            spec = choices.spec(name, data.name)
            if SALIENCY.name not in service().unfit(service().identify(spec)):
                curves.append(service().curve(spec, SALIENCY, data.pairs, data.name))
        except UserError:
            without.append(name)
    if curves:
        panels.show(
            figures.mean_curves(
                [one.summary.curve for one in curves], style,
                notes={one.model.spec.name: f"n={one.summary.curve.n}" for one in curves},
                provenance=[one.provenance() for one in curves],
            ),
            "ranking.saliency", "Mean saliency of the same pairs by position",
        )  # fmt: skip
    if without:
        st.caption(panels.plain(f"No saliency stored yet: {', '.join(without)}."))
        st.page_link("views/curves.py", label="Compute it on the Curves page",
                     icon=":material/show_chart:",
                     query_params={"dataset": data.name, "models": without})  # fmt: skip


def query_section(found: list[Ranked]) -> None:
    """Queries one by one: what was found, what should have been, and the way to Explain."""
    st.markdown("**Query by query**")
    left, right = st.columns([2, 5])
    by_name = {one.model.spec.name: one for one in found}
    name = left.selectbox("Rankings of", list(by_name), key="ranking.of")
    one = by_name[name or next(iter(by_name))]
    filters = right.pills("Only queries with", rankings.FILTERS, selection_mode="multi",
                          key="ranking.filters")  # fmt: skip
    frame = rankings.filtered(rankings.queries_frame(one), filters)
    st.caption(
        f"{len(frame):,} of {one.evaluation.n:,} queries; choose a row to see its top {TOP}."
    )
    event = st.dataframe(
        frame, hide_index=True, height=280, on_select="rerun", selection_mode="single-row",
        key=f"ranking.queries.{name}.{'.'.join(filters)}",
        column_config={
            "query": st.column_config.TextColumn(width="large"),
            NDCG: st.column_config.NumberColumn(format="%.3f"),
            "rank": st.column_config.NumberColumn(help="Of the first relevant document."),
            "evidence": st.column_config.NumberColumn("Evidence at", format="%.0f%%"),
        },
    )  # fmt: skip
    rows = event.selection.rows  # type: ignore[union-attr]
    if not rows:
        return
    query = rankings.query_of(one, str(frame["id"].iloc[rows[0]]))
    top = rankings.top_frame(one, query)
    rank = rankings.first_rank(one, query)
    where = f"first at rank {rank}" if rank else "not among those found"
    st.markdown(f"**{panels.plain(query.text)}**")
    st.caption(f"{len(query.relevant)} relevant, {where}.")
    chosen = st.dataframe(
        top.drop(columns="pair"), hide_index=True, on_select="rerun", selection_mode="single-row",
        key=f"ranking.top.{query.query_id}",
        column_config={
            "score": st.column_config.NumberColumn(format="%.4f"),
            "relevant": st.column_config.CheckboxColumn(),
            "document": st.column_config.TextColumn(width="large"),
        },
    )  # fmt: skip
    picked = chosen.selection.rows  # type: ignore[union-attr]
    links = dict(list(query.pairs.items())[:3])
    if picked:
        row = top.iloc[picked[0]]
        if row["pair"]:
            links[str(row["id"])] = str(row["pair"])
        else:
            explain_texts(query.text, str(row["document"]))
    for key, pair_id in links.items():
        panels.explain_link(f"Explain {key}", data.name, pair_id, neural_models())
    panels.downloads("ranking.top", [data.name, query.query_id], [one.provenance()], frame=top)


def neural_models() -> list[str]:
    """The chosen models that every method fits, else all of them."""
    return [name for name in names if name != "BM25"] or names


def explain_texts(query: str, document: str) -> None:
    """A link that opens a query with a document that is no pair of the data set."""
    texts = {"text": "Own text", "q": query, "d": document}
    if len(document) > url.MAX_TEXT_IN_LINK:
        st.caption("The chosen document is too long for a link; copy its text to Explain.")
        return
    address = urlencode({**texts, "models": neural_models()}, doseq=True)
    st.link_button("Explain the chosen document", f"/?{address}", icon=":material/highlight:",
                   help="In a new tab, as own text.")  # fmt: skip


def published_section(found: list[Ranked]) -> None:
    """Published measures beside ours."""
    with st.expander("Published results beside these"):
        rows = published_files.measures()
        if not rows:
            return
        settings = sorted({one.setting for one in rows})
        default = settings.index("eng-eng") if "eng-eng" in settings else 0
        setting = st.selectbox(
            "Setting", settings, index=default, key="published.setting",
            help="Languages of queries and documents.",
        )  # fmt: skip
        theirs = measures_frame([one for one in rows if one.setting == setting])
        ours = rankings.psi_frame(found).assign(setting=data.name)
        both = pd.concat([ours[theirs.columns], theirs], ignore_index=True)
        lengths = list(dict.fromkeys(both["length"]))
        length = st.segmented_control("Length", lengths, default=lengths[0], required=True,
                                      key="published.length")  # fmt: skip
        st.dataframe(both[both["length"] == length], hide_index=True)
        st.caption(
            "Published figures are of PosIR's own corpora. Of a length bucket PosIR publishes the "
            "mean over evidence bins, not over queries."
        )


ticking = is_active()


@st.fragment(run_every=2.0 if ticking else None)
def board() -> None:
    """Progress, measures and figures; refreshed by itself while a model ranks."""
    if error := st.session_state.pop("ranking.error", ""):
        st.error(panels.plain(error))
    found = []
    for name in names:
        with panels.guarded():
            if (one := status_row(name)) is not None:
                found.append(one)
    if is_active() != ticking:
        st.rerun()
    if not found:
        return
    with panels.guarded():
        measures_table(found)
        panels.caption(found[0].provenance())
        panels.downloads("ranking.measures", [data.name, "ranking"], provenance(found),
                         frame=rankings.measures_frame(found))  # fmt: skip
    with panels.guarded():
        profile_section(found)


board()
complete: list[Ranked] = []
for each in names:
    with panels.guarded():
        if (
            known := rankings.ranked(service(), choices.spec(each, data.name), the_setup)
        ) is not None:
            complete.append(known)
if complete:
    with panels.guarded():
        query_section(complete)
    with panels.guarded():
        published_section(complete)
