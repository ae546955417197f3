"""The Cause page's second tab: causal curves of several models over a data set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.types import Method
from poslens.dashboard.cause import corpus
from poslens.dashboard.cause.movable_pairs import MovablePairs, choose_movable
from poslens.dashboard.widgets import panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.paired import differences_table, show_differences
from poslens.dashboard.widgets.reading_panel import what_is_read
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.dashboard.widgets.tables import show_table
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.figures import QUANTITIES, causal_curves
from poslens.studies.cause.measures import IN_DEVIATIONS, cause_differences
from poslens.studies.cause.service import DataSetCause
from poslens.studies.curves.words import too_few

EVIDENCE = "evidence"
CHARTS = (
    "Relocation: mean score with the evidence at each position, relative to each pair's mean. "
    "Ablation: mean drop in score when the part of the document at each position is removed. Bands "
    "are 95% intervals."
)


def section(data: DataSet, models: Sequence[str], ablation: Method) -> None:
    """The choice of an intervention, and its results over the data set."""
    what = st.segmented_control(
        "Intervention",
        [EVIDENCE, *corpus.MEASURES],
        format_func=panels.plain,
        default=EVIDENCE,
        key="corpus",
        bind="query-params",
        required=True,
        wrap=True,
        help="evidence: move it to other positions, and remove each part of the document. The "
        "others compare document embeddings: they need a dense model, but no queries or evidence.",
    )
    if what in corpus.MEASURES:
        corpus.section(str(what), models, data)
    elif (choice := choose_movable(data, models, ablation, "cause.pairs")) is not None:
        _evidence(choice)


def _evidence(choice: MovablePairs) -> None:
    ticking = any_active(choice.jobs())

    @fragment(run_every=2.0 if ticking else None)
    def board() -> None:
        """Progress and causal curves, refreshed while a run is active."""
        figures = st.container()
        done = run_board(choice.jobs(), "cause.", unit="results")
        if any_active(choice.jobs()) != ticking:
            st.rerun()
        if not done:
            st.info("No results have been computed. Press Compute.")
            return
        with figures, panels.guarded():
            _curves(choice)
        what_is_read(choice.specs, choice.pairs, "cause")

    board()


def _curves(choice: MovablePairs) -> None:
    """Mean causal curves, one figure for each intervention and one line for each model."""
    results: list[DataSetCause] = []
    figures: dict[str, panels.Draw] = {}
    columns = panels.side_by_side("cause.set")
    for column, (label, intervention) in zip(columns, choice.interventions.items(), strict=True):
        own = _results(choice, intervention)
        if not own:
            continue
        figures[label] = partial(causal_curves, own)
        with column:
            st.markdown(f"**{panels.plain(label.capitalize())}**")
            style = panels.screen_style(width_px=panels.BESIDE_PX, height_px=340)
            title = QUANTITIES[intervention.name]
            panels.show(figures[label](style), f"cause.set.{intervention.name}", title)
        results += own
    if not results:
        return
    st.caption(CHARTS)
    show_table(intervention_tables.cause_frame(results))
    st.caption(panels.plain(intervention_tables.READ_WHOLE))
    differences = cause_differences(
        choice.compute, choice.specs, list(choice.interventions.values()), choice.pairs
    )
    show_differences(differences, "cause.differences", IN_DEVIATIONS)
    notes = list(dict.fromkeys(note for result in results for note in result.notes))
    if notes:
        more = f"; and {len(notes) - 3} more" if len(notes) > 3 else ""
        st.caption(panels.plain(f"Notes on some pairs: {'; '.join(notes[:3])}{more}."))
    provenance = [result.provenance() for result in results]
    panels.caption(provenance)
    panels.downloads(
        "cause.set",
        [choice.data.name, "cause"],
        provenance,
        figures=figures,
        tables={
            "Numbers": partial(intervention_tables.causal_curve_frame, results),
            **differences_table(differences),
        },
    )


def _results(choice: MovablePairs, intervention: Method) -> list[DataSetCause]:
    """Stored results of an intervention, for each model that has enough of them."""
    results = []
    for spec in choice.specs:
        stored = interventions.stored(choice.compute, spec, intervention, choice.pairs)
        job = interventions.job(choice.compute, spec, intervention, choice.pairs, choice.scope)
        failed_items([(job, stored.failed)], "cause.")
        if not stored.results:
            continue
        n_possible = len(choice.pairs) - len(stored.failed)
        if reason := too_few(spec.name, len(stored.results), n_possible):
            st.caption(panels.plain(reason))
        else:
            results.append(
                interventions.data_set_cause(
                    choice.compute, spec, intervention, choice.pairs, choice.data.name, choice.words
                )
            )
    return results
