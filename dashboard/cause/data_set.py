"""The Cause page's second tab: interventions on a data set's evidence, or on its documents alone,
for several models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.segments import EDITS
from poslens.attribution.types import Method
from poslens.dashboard.cause.items import CauseItems, choose_documents, choose_movable
from poslens.dashboard.widgets import choices, panels, say
from poslens.dashboard.widgets.paired import differences_table, show_differences
from poslens.dashboard.widgets.reading_panel import what_is_read
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board, watched
from poslens.dashboard.widgets.tables import show_table
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.edits import MeanEdits, edits_frame, mean_edits
from poslens.studies.cause.figures import COSINE, QUANTITIES, causal_curves, edit_means
from poslens.studies.cause.service import DataSetCause
from poslens.studies.cause.tables import IN_DEVIATIONS, cause_differences
from poslens.studies.curves.words import too_few

EVIDENCE = "evidence"
CHARTS = (
    "Relocation: mean score with the evidence at each position, relative to each pair's mean. "
    "Ablation: mean drop in score when the part of the document at each position is removed. Bands "
    "are 95% intervals."
)
MEASURES = {
    "segments": "Cosine between each segment's embedding and the whole text's, with segments in "
    "original and in random order. A slope in both orders is an effect of position; a slope in the "
    "original order alone is an effect of content.",
    "thirds": "Cosine between the embedding of the first, middle or last third of the text (by "
    "characters) and the whole text's.",
    "insertion": "Cosine between the text's embeddings before and after inserting neutral text. A "
    "text that would exceed the context limit is shortened first.",
    "removal": "Cosine between the text's embeddings before and after removing a part.",
}
"""Interventions without a query, by their names in the URL, with captions."""


def section(data: DataSet, models: Sequence[str], ablation: Method) -> None:
    """The choice of an intervention, and its results over the data set."""
    what = choices.one_of(
        "Intervention",
        [EVIDENCE, *MEASURES],
        "corpus",
        help="evidence: move it to other positions, and remove each part of the document. The "
        "others compare document embeddings: they need a dense model, but no queries or evidence.",
    )
    if what not in MEASURES:
        choice = choose_movable(data, models, ablation, "cause.pairs")
    else:
        methods = interventions.methods()
        names = ("segments", "shuffled") if what == "segments" else (what,)
        choice = choose_documents(data, models, {name: methods[name] for name in names})
    if choice is not None:
        _board(choice, what)


def _board(choice: CauseItems, what: str) -> None:
    def board() -> None:
        """Progress and results."""
        results = st.container()
        done = run_board(choice.jobs(), choice.prefix, unit="results")
        if what in MEASURES:
            st.caption(MEASURES[what])
        with results if done or what in MEASURES else st.container(), panels.guarded():
            if not done:
                st.info("No results have been computed. Press Compute.")
            elif what in EDITS:
                _edits(choice)
            elif what in MEASURES:
                _segments(choice, what)
            else:
                _evidence(choice)
        if done and what not in MEASURES:
            what_is_read(choice.specs, choice.items, "cause")

    watched(lambda: any_active(choice.jobs()), board)


def _evidence(choice: CauseItems) -> None:
    """Mean causal curves, one figure for each intervention and one line for each model."""
    results: list[DataSetCause] = []
    figures: dict[str, panels.Draw] = {}
    columns = panels.side_by_side("cause.set")
    for column, (label, method) in zip(columns, choice.interventions.items(), strict=True):
        own = _results(choice, [method])
        if not own:
            continue
        figures[label] = partial(causal_curves, own)
        with column:
            say.heading(label.capitalize())
            style = panels.screen_style(width_px=panels.BESIDE_PX, height_px=340)
            title = QUANTITIES[method.name]
            panels.show(figures[label](style), f"cause.set.{method.name}", title)
        results += own
    if results:
        st.caption(CHARTS)
        show_table(intervention_tables.cause_frame(results))
        say.caption(intervention_tables.READ_WHOLE)
        notes = list(dict.fromkeys(note for result in results for note in result.notes))
        _numbers(choice, results, figures, "cause.set", "cause", IN_DEVIATIONS, notes)


def _segments(choice: CauseItems, measure: str) -> None:
    """Mean segment curves, one line for each model and order."""
    if results := _results(choice, choice.interventions.values()):
        draw = partial(causal_curves, results)
        panels.show(draw(panels.screen_style(height_px=340)), f"corpus.{measure}", COSINE)
        show_table(intervention_tables.segments_frame(results))
        say.caption(intervention_tables.READ_ONLY)
        figures = {measure.capitalize(): draw}
        _numbers(choice, results, figures, f"corpus.{measure}", measure)


def _results(choice: CauseItems, methods: Iterable[Method]) -> list[DataSetCause]:
    """Stored results of interventions, for each model that has enough of them."""
    results = []
    for spec, method in product(choice.specs, methods):
        stored = interventions.stored(choice.compute, spec, method, choice.items)
        failed_items([(choice.job(spec, method), stored.failed)], choice.prefix, unit=choice.unit)
        if not stored.results:
            continue
        n_possible = len(choice.items) - len(stored.failed)
        if reason := too_few(spec.name, len(stored.results), n_possible):
            say.caption(reason)
        else:
            results.append(
                interventions.data_set_cause(
                    choice.compute, spec, method, choice.items, choice.data.name, choice.words
                )
            )
    return results


def _numbers(
    choice: CauseItems,
    results: Sequence[DataSetCause],
    figures: Mapping[str, panels.Draw],
    key: str,
    name: str,
    remark: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Differences between models, notes, provenance and exports of causal curves."""
    methods = list(choice.interventions.values())
    differences = cause_differences(choice.compute, choice.specs, methods, choice.items)
    show_differences(differences, f"{key}.differences", remark)
    if notes:
        more = f"; and {len(notes) - 3} more" if len(notes) > 3 else ""
        say.caption(f"Notes on some pairs: {'; '.join(notes[:3])}{more}.")
    provenance = [result.provenance() for result in results]
    panels.caption(provenance)
    panels.downloads(
        key,
        [choice.data.name, name],
        provenance,
        figures=figures,
        tables={
            "Numbers": partial(intervention_tables.causal_curve_frame, results),
            **differences_table(differences),
        },
    )


def _edits(choice: CauseItems) -> None:
    """Mean cosine similarities by amount of text inserted or removed, one line for each model and
    position."""
    (method,) = choice.interventions.values()
    results: list[MeanEdits] = []
    for spec in choice.specs:
        failed = interventions.stored(choice.compute, spec, method, choice.items).failed
        failed_items([(choice.job(spec, method), failed)], choice.prefix, unit=choice.unit)
        try:
            results.append(
                mean_edits(
                    choice.compute, spec, method, choice.items, choice.data.name, choice.words
                )
            )
        except UserError as reason:
            say.caption(reason)
    if not results:
        return
    draw = partial(edit_means, results)
    panels.show(draw(panels.screen_style(height_px=340)), f"corpus.{method.name}", COSINE)
    for edits in results:
        more = [f"{edits.n_shortened} shortened to the context limit"] if edits.n_shortened else []
        more += [f"{edits.n_failed} failed"] if edits.n_failed else []
        facts = [f"{edits.model.spec.name}: {edits.n} documents", *more, *edits.notes]
        say.caption(f"{'; '.join(facts)}.")
    provenance = [result.provenance() for result in results]
    panels.caption(provenance)
    panels.downloads(
        f"corpus.{method.name}",
        [choice.data.name, method.name],
        provenance,
        figures={method.name.capitalize(): draw},
        tables={"Numbers": lambda: edits_frame(results)},
    )
