"""The Ranking page: how well models rank a data set's corpus, by evidence position."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.methods import POSIR_CURVE, make_method
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute.compute import DataSetCurve
from poslens.compute.runs import Job
from poslens.dashboard.ranking import groups as ranking_groups
from poslens.dashboard.ranking import hubs as ranking_hubs
from poslens.dashboard.ranking import published as published_results
from poslens.dashboard.ranking import queries as ranking_queries
from poslens.dashboard.ranking.run_choice import notes as run_notes
from poslens.dashboard.ranking.run_choice import ranked_runs, run_choice
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.reading_panel import readable_pairs, what_is_read
from poslens.dashboard.widgets.run_board import run_board
from poslens.dashboard.widgets.study_page import study_section, study_settings
from poslens.dashboard.widgets.tables import column_settings, show_table
from poslens.figures import curves as curve_figures
from poslens.figures.curves import Style
from poslens.parameters import Settings
from poslens.studies.curves.words import too_few
from poslens.studies.positions.study import POSITIONS
from poslens.studies.ranking import service as ranking_service
from poslens.studies.ranking import tables
from poslens.studies.ranking.figures import evidence_bins, length_buckets
from poslens.studies.ranking.service import Measured, Ranked, RankingSetup

TABS = ("Rankings", "Hubs")
WHOLE, OWN = "all documents", "the query's own corpus"
LANGUAGE = "documents in the query's language"

st.markdown("# Ranking: do rankings depend on where the evidence is?")
setup = hubs_asked = None
judged = False
moved: Settings = POSITIONS.parameters.settings()
with st.sidebar, panels.guarded():
    data = choices.data_set()
    names = choices.models(["MiniLM-primacy", "MiniLM", "MiniLM-recency", "BM25"])
    hubs_asked = ranking_hubs.hub_settings(data)
    judged = ranking_service.is_judged(data)
if hubs_asked is None:
    st.stop()
if not judged:  # without judgments only searching is possible
    with panels.guarded():
        ranking_service.searched(data)  # raises for a format without a corpus
        try:
            ranking_service.collection_of(data)
        except UserError as error:
            st.info(panels.plain(error))
        ranking_hubs.section(data, names, hubs_asked, choices.spec)
    st.stop()
with st.sidebar, panels.guarded():
    collection = ranking_service.collection_of(data)
    runs = run_choice(collection)
    settings = st.expander("Search settings")
    with settings:
        posir = choices.posir_settings()
    own_corpus = False
    if len(collection.parts) > 1:
        where = settings.selectbox(
            "Search in",
            [WHOLE, OWN],
            key="searched",
            bind="query-params",
            help="PosIR searches each query in the corpus of its domain and language. "
            "Searching all documents is harder, and shows whether a model prefers documents in the "
            "query's language.",
        )
        own_corpus = where == OWN
    elif ranking_service.has_pools(collection):
        where = settings.selectbox(
            "Search in",
            [WHOLE, LANGUAGE],
            key="searched",
            bind="query-params",
            help="MultiClaim's monolingual figures search only the claims in the post's "
            "language. Searching all documents shows whether a model prefers claims in the post's "
            "language. The language of a translation is that of its original.",
        )
        if own_corpus := where == LANGUAGE:
            collection = ranking_service.monolingual(collection)
    first_stage = None
    resolved = [resolve.known().get(name) for name in names]
    if any(spec is not None and ranking_service.needs_first_stage(spec) for spec in resolved):
        with settings:
            first = choices.model("First stage of rerankers", "first", "BM25", at=None)
        first_stage = choices.ranking_spec(first, data.name, posir=posir)
    setup = RankingSetup(collection, own_corpus, first_stage)
    with st.expander("Position effect settings"):
        moved = study_settings(POSITIONS, data)
if setup is None:
    st.stop()
the_setup = setup
saliency = make_method("saliency", POSIR_CURVE if posir else None)


def spec_of(name: str) -> RetrieverSpec:
    """The retriever with the settings used for ranking here."""
    return choices.ranking_spec(name, data.name, posir=posir)


def specs() -> list[RetrieverSpec]:
    """The selected models that can rank; the rows of the others state the reason."""
    specs = []
    for name in names:
        with suppress(UserError):
            ranking_service.method_for(service_for(data.name), spec := spec_of(name), the_setup)
            service_for(data.name).identify(spec)
            specs.append(spec)
    return specs


pairs = data.pairs
with settings, panels.guarded():
    pairs, left_out = readable_pairs(specs(), pairs)
    if left_out:
        the_setup = the_setup.narrowed(pairs, left_out)

with panels.guarded():
    survey, n_queries = the_setup.collection.survey, len(the_setup.collection.queries)
    measured = len(the_setup.queries)
    st.markdown(
        f"{n_queries:,} queries and {survey.n:,} documents of {panels.plain(data.title)}; every "
        "document is scored for every query."
        + (
            f" Measured over {measured:,} queries: {panels.plain(the_setup.selection)}."
            if measured < n_queries
            else ""
        )
    )
    for note in the_setup.collection.notes:
        st.caption(panels.plain(note))
    rejected = [*the_setup.collection.rejected, *survey.rejected]
    if rejected:
        with st.expander(f"{len(rejected):,} rows were rejected"):
            show_table(
                pd.DataFrame(
                    [(r.file, r.row, r.reason) for r in rejected[:1000]],
                    columns=["file", "row", "reason"],
                ),
            )
if not names and not runs:
    st.info("Choose a model in the sidebar.")
    st.stop()
if not the_setup.queries:
    st.info("Every query has a pair that a model can't read. Choose another model.")
    st.stop()


def job_of(name: str) -> Job:
    """The job that ranks with this model."""
    return ranking_service.job(service_for(data.name), spec_of(name), the_setup)


def job_of_all() -> Job:
    """The job that ranks with every model without rankings, one after the other."""
    return ranking_service.job_of_all(service_for(data.name), specs(), the_setup)


def is_active() -> bool:
    """Whether any of the models is ranking, or queued."""
    if job_of_all().active:
        return True
    for name in names:
        with suppress(UserError):
            if job_of(name).active:
                return True
    return False


def progress(missing: list[str]) -> None:
    """Progress and button for the models without rankings."""
    chain = job_of_all()
    if not missing and not chain.active:
        return
    names = ", ".join(missing)
    if len(missing) > 1 or chain.active:
        run_board(
            [chain],
            "ranking.",
            unit="models ranked",
            verb="Rank all",
            stop="Stop all",
            idle=f"Not ranked yet: {names}.",
        )
        return
    job = job_of(missing[0])
    again = job.run is not None and job.run.progress.stopped
    kept = " Computed results are kept." if again else ""
    run_board(
        [job],
        suffix=f".{missing[0]}",
        verb="Rank remaining" if again else "Rank",
        idle=f"Not ranked yet: {names}.{kept}",
    )


def measures_table(rankings: Sequence[Measured]) -> None:
    """Measures with their intervals, one row per model."""
    show_table(
        tables.TABLES["measures"].text_frame(rankings),
        column_config=column_settings(tables.TABLES["measures"].meanings())
        | {
            "same language in top 10": st.column_config.TextColumn(
                help="Share of the top 10 in the query's language."
            ),
            "same language in corpus": st.column_config.NumberColumn(
                format="%.3f", help="Share of the corpus in the query's language."
            ),
            "without a result": st.column_config.NumberColumn(
                help="Queries that retrieve no document; they count as 0."
            ),
        },
    )
    over = rankings[0].evaluation.estimates[NDCG]
    st.caption(
        f"{over.n:,} queries and their {over.n_resampled:,} relevant documents. The 95% "
        "intervals are bootstrap intervals over these documents, except those of S@10, which come "
        "from a formula (Agresti and Coull) and assume independent queries. S@10 per query is the "
        "share of queries with a relevant document in the top 10; S@10 per pair is the share of "
        "pairs of a query and a relevant document with that document in the top 10."
    )


def languages_table(rankings: Sequence[Measured]) -> None:
    """S@10 of pairs and of queries by the queries' language, if there are several languages."""
    if len(the_setup.collection.languages) < 2:
        return
    frame = tables.TABLES["languages"].frame(rankings)
    with st.expander("By the queries' language"):
        show_table(
            frame,
            column_config={
                name: st.column_config.NumberColumn(format="%.3f") for name in frame.columns[4:]
            },
        )
        panels.downloads(
            "ranking.languages", [data.name, "languages"], provenance(rankings), frame=frame
        )


def provenance(rankings: Sequence[Measured]) -> list[Provenance]:
    """The provenance of the numbers, one entry for each model or run."""
    return [measured.provenance() for measured in rankings]


def profile_section(rankings: Sequence[Measured]) -> None:
    """nDCG by evidence position, saliency of the same pairs, length buckets and PSI."""
    profiles = {
        measured.name: measured.evaluation.profile
        for measured in rankings
        if measured.evaluation.profile is not None
    }
    if not profiles:
        st.info("This data set has no evidence positions, so PSI isn't defined.")
        return
    buckets = {measured.name: measured.evaluation.buckets for measured in rankings}
    models = [measured for measured in rankings if isinstance(measured, Ranked)]
    has_buckets = any(buckets.values())

    def draw_bins(style: Style) -> go.Figure:
        """nDCG by evidence bin."""
        return evidence_bins(profiles, style, provenance=provenance(rankings))

    def draw_buckets(style: Style) -> go.Figure:
        """nDCG by length bucket."""
        return length_buckets(buckets, style, provenance=provenance(rankings))

    style = panels.screen_style(width_px=panels.BESIDE_PX, height_px=380)
    left, right = panels.side_by_side("ranking.places")
    with left:
        st.markdown("**nDCG@10 by evidence position**")
        panels.show(draw_bins(style), "ranking.bins", "nDCG@10 in 20 bins of evidence position")
    with right:
        st.markdown("**Saliency of the data set's pairs**")
        saliency_section([model.name for model in models], style)
    left, right = panels.side_by_side("ranking.lengths")
    with left:
        if has_buckets:
            st.markdown("**nDCG@10 by document length**")
            panels.show(draw_buckets(style), "ranking.buckets", "nDCG@10 in length buckets")
    with right:
        st.markdown("**Position sensitivity (PSI)**")
        table = tables.TABLES["psi"].frame(rankings)
        show_table(
            table,
            height=350,
            column_config=column_settings(
                tables.TABLES["psi"].meanings(),
                dict.fromkeys(
                    ("PSI", "PSI under permutation", "p", NDCG, f"{NDCG}, mean of bins"), ".3f"
                ),
            )
            | {
                # As wide as its longest row, which would otherwise look like an exception among Q1
                # to Q4.
                "length": st.column_config.TextColumn(
                    width=145,
                    help="Queries of documents of this length; evidence read whole: only queries "
                    "whose evidence is within the context limit.",
                ),
                "evidence read": st.column_config.NumberColumn(
                    format="percent",
                    help="Mean share of the evidence that is within the context limit.",
                ),
            },
        )
    st.caption(
        "PSI is 1 − worst / best mean nDCG@10 over 20 bins of evidence position. With few queries "
        "per bin it is large even without a bias, so compare it with PSI under permutation: the "
        "mean PSI after evidence positions are permuted between queries. p is the share of "
        "permutations whose PSI is at least the measured one. In the chart, the fuller a marker, "
        "the more of the evidence the model reads."
    )
    what_is_read([model.model.spec for model in models], pairs, "ranking")
    drawings = {"Evidence bins": draw_bins} | ({"Lengths": draw_buckets} if has_buckets else {})
    panels.downloads(
        "ranking.psi",
        [data.name, "psi"],
        provenance(rankings),
        figures=drawings,
        frame=tables.TABLES["bins"].frame(rankings),
    )


def position_section() -> None:
    """nDCG@10 by evidence position, with each query compared to itself."""
    st.markdown(f"## {panels.plain(POSITIONS.title)}\n{panels.plain(POSITIONS.reads)}")
    study_section(POSITIONS, data, names, moved, spec_of=lambda name, _: spec_of(name))


def saliency_section(models: list[str], style: Style) -> None:
    """Stored saliency curves of the data set's pairs, and the models that have none."""
    if not models:
        st.caption("Runs have no saliency. Select a model to compare with.")
    curves: list[DataSetCurve] = []
    without = []
    for name in models:
        try:
            spec = choices.spec(name, data.name, posir=posir)
            if saliency.name not in service_for(data.name).unfit(
                service_for(data.name).identify(spec)
            ):
                curve = service_for(data.name).curve(
                    spec, saliency, pairs, data.name, the_setup.selection
                )
                n_possible = curve.total - len(curve.failed)
                if too_few(name, curve.summary.curve.n, n_possible):
                    without.append(name)
                else:
                    curves.append(curve)
        except UserError:
            without.append(name)
    if curves:
        panels.show(
            curve_figures.mean_curves(
                [curve.summary.curve for curve in curves],
                style,
                provenance=[curve.provenance() for curve in curves],
            ),
            "ranking.saliency",
            "Mean saliency of the data set's pairs by position",
        )
    if without:
        st.caption(panels.plain(f"Too few pairs with saliency: {', '.join(without)}."))
        links.page_link(
            "curves/page.py",
            "Compute it on the Curves page",
            ":material/show_chart:",
            {
                "dataset": data.name,
                "models": without,
                **({"posir": "true"} if posir else {}),
                **({"readable": "true"} if the_setup.selection else {}),
            },
        )


given = ranked_runs(runs, the_setup)
ticking = is_active()


@fragment(run_every=2.0 if ticking else None)
def board() -> None:
    """Progress, measures and figures, refreshed automatically while a model ranks."""
    rankings: list[Measured] = []
    missing: list[str] = []
    for name in names:
        with panels.guarded():
            ranked = ranking_service.ranked(service_for(data.name), spec_of(name), the_setup)
            if ranked is None:
                job_of(name)
                missing.append(name)
            else:
                rankings.append(ranked)
    with panels.guarded():
        progress(missing)
    if is_active() != ticking:
        st.rerun()
    rankings += given
    if not rankings:
        return
    with panels.guarded():
        ranking_groups.section(rankings, the_setup.collection.groups, data.name)
    with panels.guarded():
        profile_section(rankings)
    with panels.guarded():
        measures_table(rankings)
        run_notes(given)
        panels.caption(provenance(rankings))
        panels.downloads(
            "ranking.measures",
            [data.name, "ranking"],
            provenance(rankings),
            frame=tables.TABLES["measures"].frame(rankings),
        )
        languages_table(rankings)


rankings_tab, hubs_tab = st.tabs(TABS, key="tab", bind="query-params")
if hubs_tab.open:
    with hubs_tab, panels.guarded():
        ranking_hubs.section(data, names, hubs_asked, lambda name, _: spec_of(name))
    st.stop()
with rankings_tab:
    if names and any(pair.evidence is not None for pair in data.pairs):
        with panels.guarded():
            position_section()
        st.markdown("## Rankings of the unmodified corpus")
    board()
    complete: list[Measured] = []
    for each in names:
        with panels.guarded():
            if (
                known := ranking_service.ranked(service_for(data.name), spec_of(each), the_setup)
            ) is not None:
                complete.append(known)
    complete += given
    if complete:
        with panels.guarded():
            note = "Explain uses each model's own prompt and context limit." if posir else ""
            ranking_queries.section(complete, data.name, names, note)
        with panels.guarded():
            published_results.section(complete, data.name)
