"""The Cause page's part that needs no query: a data set's documents by themselves."""

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
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.palettes import Style
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.edits import MeanEdits, edits_frame, mean_edits
from poslens.studies.cause.figures import COSINE, causal_curves, edit_means
from poslens.studies.cause.service import DataSetCause
from poslens.studies.curves.words import too_few

MEASURES: dict[str, tuple[Method, ...]] = {
    "segments": (segments_method("segments"), segments_method("shuffled")),
    "thirds": (segments_method("thirds"),),
    **{by: (edits_method(by),) for by in EDITS},
}
"""What can be asked of documents alone, by its name in the address."""


SAID = {
    "segments": "Each segment's own vector against the whole text's, in the text's order and in an "
    "order by lot. What leans in both is position, what leans in the first alone is content.",
    "thirds": "The first, middle and last third of the text, by characters, against the whole.",
    "insertion": "Neutral text is put in; the vector that results against the text's own. A text "
    "that would not fit with it is shortened first.",
    "removal": "A part is taken out; the vector of the rest against the text's own.",
}


def section(models: Sequence[str], data: DataSet) -> None:
    """Choices, progress, curves and exports."""
    documents = documents_of(data.pairs)
    left, right = st.columns([1, 3])
    with left:
        chosen = choices.spread(
            "Documents", documents, interventions.DEFAULT_PAIRS, "corpus.documents"
        )
    measure = (
        right.segmented_control(
            "What is asked of them",
            list(MEASURES),
            default="segments",
            key="corpus",
            bind="query-params",
            required=True,
            wrap=True,
        )
        or "segments"
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
        return [_job(spec, what, chosen, data) for spec in specs for what in MEASURES[measure]]

    ticking = any_active(jobs())

    @fragment(run_every=2.0 if ticking else None)
    def board() -> None:
        """Refreshed by itself while something runs."""
        active = any_active(jobs())
        figure = st.container()
        done = run_board(jobs(), "corpus.", unit="results")
        if active != ticking:
            st.rerun()
        st.caption(SAID[measure])
        with figure, panels.guarded():
            if not done:
                st.info("Nothing is stored for these documents yet: press Compute.")
            elif measure in EDITS:
                _edits(specs, MEASURES[measure][0], chosen, data)
            else:
                _segments(specs, measure, chosen, data)

    board()


def _job(spec: RetrieverSpec, what: Method, chosen: Sequence[TextPair], data: DataSet) -> Job:
    scope = f"{data.name}: documents"
    return interventions.job(service_for(data.name), spec, what, chosen, scope)


def _selection(chosen: Sequence[TextPair], data: DataSet) -> str:
    total = len(documents_of(data.pairs))
    return "" if len(chosen) == total else f"{len(chosen)} documents spread evenly"


def _segments(
    specs: Sequence[RetrieverSpec], measure: str, chosen: Sequence[TextPair], data: DataSet
) -> None:
    """Mean segment curves, a line for each model and order."""
    compute = service_for(data.name)
    found: list[DataSetCause] = []
    for spec in specs:
        for what in MEASURES[measure]:
            kept = interventions.stored(compute, spec, what, chosen)
            job = _job(spec, what, chosen, data)
            failed_items(job, kept.failed, "corpus.", unit="document")
            n = len(kept.results)
            if not n:
                continue
            if few := too_few(spec.name, n, len(chosen) - len(kept.failed)):
                st.caption(panels.plain(few))
                continue
            found.append(
                interventions.data_set_cause(
                    compute, spec, what, chosen, data.name, _selection(chosen, data)
                )
            )
    if not found:
        return
    known = [one.provenance() for one in found]

    def draw(style: Style) -> go.Figure:
        return causal_curves(found, style)

    panels.show(draw(panels.screen_style(height_px=340)), f"corpus.{measure}", COSINE)
    show_table(intervention_tables.segments_frame(found))
    st.caption(panels.plain(intervention_tables.READ_ONLY))
    panels.caption(known)
    panels.downloads(
        f"corpus.{measure}",
        [data.name, measure],
        known,
        figures={measure.capitalize(): draw},
        frame=intervention_tables.causal_curve_frame(found),
    )


def _edits(
    specs: Sequence[RetrieverSpec], what: Method, chosen: Sequence[TextPair], data: DataSet
) -> None:
    """Mean cosines by how much was put in or taken out, a line for each model and place."""
    compute = service_for(data.name)
    found: list[MeanEdits] = []
    for spec in specs:
        job = _job(spec, what, chosen, data)
        failed = interventions.stored(compute, spec, what, chosen).failed
        failed_items(job, failed, "corpus.", unit="document")
        try:
            found.append(
                mean_edits(compute, spec, what, chosen, data.name, _selection(chosen, data))
            )
        except UserError as reason:
            st.caption(panels.plain(str(reason)))
    if not found:
        return
    known = [one.provenance() for one in found]

    def draw(style: Style) -> go.Figure:
        return edit_means(found, style, known)

    panels.show(draw(panels.screen_style(height_px=340)), f"corpus.{what.name}", COSINE)
    for one in found:
        more = [f"{one.n_shortened} shortened to what is read"] if one.n_shortened else []
        more += [f"{one.n_failed} failed"] if one.n_failed else []
        said = "; ".join([f"{one.model.spec.name}: {one.n} documents", *more, *one.notes])
        st.caption(panels.plain(f"{said}."))
    panels.caption(known)
    panels.downloads(
        f"corpus.{what.name}",
        [data.name, what.name],
        known,
        figures={what.name.capitalize(): draw},
        frame=edits_frame(found),
    )
