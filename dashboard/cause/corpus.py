"""Interventions on documents alone (segments, thirds, insertion, removal), whose effect is measured
by the documents' embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.segments import (
    EDITS,
    documents_of,
    edits_method,
    require_vector,
    segments_method,
)
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.paired import differences_table, show_differences
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.palettes import Style
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.edits import MeanEdits, edits_frame, mean_edits
from poslens.studies.cause.figures import COSINE, causal_curves, edit_means
from poslens.studies.cause.measures import cause_differences
from poslens.studies.cause.service import DataSetCause
from poslens.studies.curves.words import too_few

MEASURES: dict[str, tuple[Method, ...]] = {
    "segments": (segments_method("segments"), segments_method("shuffled")),
    "thirds": (segments_method("thirds"),),
    **{by: (edits_method(by),) for by in EDITS},
}
"""Interventions without a query, by their names in the URL."""

WORDS = {
    "segments": "Cosine between each segment's embedding and the whole text's, with segments in "
    "original and in random order. A slope in both orders is an effect of position; a slope in the "
    "original order alone is an effect of content.",
    "thirds": "Cosine between the embedding of the first, middle or last third of the text (by "
    "characters) and the whole text's.",
    "insertion": "Cosine between the text's embeddings before and after inserting neutral text. A "
    "text that would exceed the context limit is shortened first.",
    "removal": "Cosine between the text's embeddings before and after removing a part.",
}


def section(measure: str, models: Sequence[str], data: DataSet) -> None:
    """Progress, curves and exports of one of `MEASURES`."""
    documents = documents_of(data.pairs)
    chosen = choices.spread(
        "Documents", documents, interventions.DEFAULT_PAIRS, "corpus.documents", width=240
    )
    specs: list[RetrieverSpec] = []
    for name in models:
        spec = choices.spec(name, data.name)
        try:
            require_vector(spec)
            specs.append(spec)
        except UserError as reason:
            st.caption(panels.plain(str(reason)))
    if not specs:
        return

    def jobs() -> list[Job]:
        return [
            _job(spec, intervention, chosen, data)
            for spec in specs
            for intervention in MEASURES[measure]
        ]

    ticking = any_active(jobs())

    @fragment(run_every=2.0 if ticking else None)
    def board() -> None:
        """Progress and results, refreshed while a run is active."""
        active = any_active(jobs())
        figure = st.container()
        done = run_board(jobs(), "corpus.", unit="results")
        if active != ticking:
            st.rerun()
        st.caption(WORDS[measure])
        with figure, panels.guarded():
            if not done:
                st.info("No results have been computed. Press Compute.")
            elif measure in EDITS:
                _edits(specs, MEASURES[measure][0], chosen, data)
            else:
                _segments(specs, measure, chosen, data)

    board()


def _job(
    spec: RetrieverSpec, intervention: Method, chosen: Sequence[TextPair], data: DataSet
) -> Job:
    scope = f"{data.name}: documents"
    return interventions.job(service_for(data.name), spec, intervention, chosen, scope)


def _selection(chosen: Sequence[TextPair], data: DataSet) -> str:
    total = len(documents_of(data.pairs))
    return "" if len(chosen) == total else f"{len(chosen)} documents spread evenly"


def _segments(
    specs: Sequence[RetrieverSpec], measure: str, chosen: Sequence[TextPair], data: DataSet
) -> None:
    """Mean segment curves, one line for each model and order."""
    compute = service_for(data.name)
    results: list[DataSetCause] = []
    for spec in specs:
        for intervention in MEASURES[measure]:
            stored = interventions.stored(compute, spec, intervention, chosen)
            job = _job(spec, intervention, chosen, data)
            failed_items([(job, stored.failed)], "corpus.", unit="document")
            n = len(stored.results)
            if not n:
                continue
            if few := too_few(spec.name, n, len(chosen) - len(stored.failed)):
                st.caption(panels.plain(few))
                continue
            results.append(
                interventions.data_set_cause(
                    compute, spec, intervention, chosen, data.name, _selection(chosen, data)
                )
            )
    if not results:
        return
    provenance = [result.provenance() for result in results]

    def draw(style: Style) -> go.Figure:
        return causal_curves(results, style)

    panels.show(draw(panels.screen_style(height_px=340)), f"corpus.{measure}", COSINE)
    show_table(intervention_tables.segments_frame(results))
    st.caption(panels.plain(intervention_tables.READ_ONLY))
    differences = cause_differences(compute, specs, MEASURES[measure], chosen)
    show_differences(differences, f"corpus.{measure}.differences")
    panels.caption(provenance)
    panels.downloads(
        f"corpus.{measure}",
        [data.name, measure],
        provenance,
        figures={measure.capitalize(): draw},
        tables={
            "Numbers": lambda: intervention_tables.causal_curve_frame(results),
            **differences_table(differences),
        },
    )


def _edits(
    specs: Sequence[RetrieverSpec], intervention: Method, chosen: Sequence[TextPair], data: DataSet
) -> None:
    """Mean cosine similarities by amount of text inserted or removed, one line for each model and
    position."""
    compute = service_for(data.name)
    results: list[MeanEdits] = []
    for spec in specs:
        job = _job(spec, intervention, chosen, data)
        failed = interventions.stored(compute, spec, intervention, chosen).failed
        failed_items([(job, failed)], "corpus.", unit="document")
        try:
            results.append(
                mean_edits(compute, spec, intervention, chosen, data.name, _selection(chosen, data))
            )
        except UserError as reason:
            st.caption(panels.plain(str(reason)))
    if not results:
        return
    provenance = [result.provenance() for result in results]

    def draw(style: Style) -> go.Figure:
        return edit_means(results, style, provenance)

    panels.show(draw(panels.screen_style(height_px=340)), f"corpus.{intervention.name}", COSINE)
    for edits in results:
        more = [f"{edits.n_shortened} shortened to the context limit"] if edits.n_shortened else []
        more += [f"{edits.n_failed} failed"] if edits.n_failed else []
        facts = [f"{edits.model.spec.name}: {edits.n} documents", *more, *edits.notes]
        st.caption(panels.plain(f"{'; '.join(facts)}."))
    panels.caption(provenance)
    panels.downloads(
        f"corpus.{intervention.name}",
        [data.name, intervention.name],
        provenance,
        figures={intervention.name.capitalize(): draw},
        frame=edits_frame(results),
    )
