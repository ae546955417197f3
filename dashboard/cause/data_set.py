"""The Cause page's part about a data set: causal curves of several models, and which method agrees
with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.agreement import Agreement
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_agreement
from poslens.compute.runs import Job
from poslens.dashboard.cause import null_controls
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.reading_panel import readable_pairs, what_is_read
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.dashboard.widgets.sending import propose_sentences
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.palettes import Style
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.figures import QUANTITIES, causal_curves
from poslens.studies.curves.words import too_few


@dataclass(frozen=True, slots=True)
class CauseSelection:
    """What is compared, over which pairs, under which models, and where results are kept."""

    compute: Compute
    specs: tuple[RetrieverSpec, ...]
    interventions: Mapping[str, Method]
    judged: Mapping[str, Method]
    pairs: tuple[TextPair, ...]
    scope: str
    words: str

    def jobs(self) -> list[Job]:
        """Every intervention and every judged method, under each model."""
        found = []
        for spec in self.specs:
            for what in self.interventions.values():
                found.append(interventions.job(self.compute, spec, what, self.pairs, self.scope))
            for one in self.judged.values():
                found.append(self.compute.attribution_job(spec, one, self.pairs, self.scope))
        return found


def section(models: Sequence[str], method: Method, ablation: Method, data: DataSet) -> None:
    """Choices, progress, causal curves, agreement and null controls of a data set."""
    st.markdown("**Over the data set**")
    usable, left_out = movable(data.pairs)
    if left_out:
        st.caption(panels.plain(left_out))
    if len(usable) < 2:
        st.info(
            "Fewer than two pairs of this data set have an evidence span that could be moved: "
            "nothing to compare."
        )
        return
    left, right = st.columns([1, 3])
    with left:
        chosen = choices.spread(
            "Pairs", usable, interventions.DEFAULT_PAIRS, "cause.pairs", least=2
        )
    primary = [name for name, entry in METHODS.items() if entry.primary]
    with right:
        names = choices.methods(models, primary, "Methods to judge", "against")
    words = f"{len(chosen)} pairs spread evenly"
    specs = tuple(choices.spec(name, data.name) for name in models)
    pairs, unreadable = readable_pairs(specs, chosen)
    words = ", ".join(filter(None, (words, unreadable)))
    if len(pairs) < 2:
        st.info("Fewer than two of these pairs can be read: choose more pairs, or another model.")
        return
    judged = {name: make_method(name) for name in names}
    # The sidebar's method, as it is set there, is the one whose null control can be subtracted.
    judged[method.name] = method
    choice = CauseSelection(
        compute=service_for(data.name),
        specs=specs,
        interventions={
            "relocation": relocation_method(),
            f"ablation ({ablation.params['by']})": ablation,
        },
        judged=judged,
        pairs=pairs,
        scope=f"{data.name}: cause, {words}",
        words=words,
    )
    control = null_controls.switch(method)

    def is_active() -> bool:
        return any_active(choice.jobs()) or null_controls.active(
            choice.compute, choice.specs, method, choice.scope, control
        )

    ticking = is_active()

    @fragment(run_every=2.0 if ticking else None)
    def board() -> None:
        """Refreshed by itself while something runs."""
        active = is_active()
        done = run_board(choice.jobs(), "cause.", unit="results")
        if active != ticking:
            st.rerun()
        if not active:
            for spec in choice.specs:
                propose_sentences(choice.compute, spec, method, choice.pairs, choice.scope)
        if not done:
            st.info("Nothing is stored for these pairs yet: press Compute.")
            return
        for label, what in choice.interventions.items():
            with panels.guarded():
                _curves(choice, data, label, what)
        with panels.guarded():
            _agreements(choice, data)
        what_is_read(choice.specs, choice.pairs, "cause")
        if control is not None:
            with panels.guarded():
                null_controls.section(
                    choice.compute,
                    choice.specs,
                    method,
                    control,
                    choice.pairs,
                    data.pairs,
                    choice.scope,
                    choice.words,
                    "cause",
                )

    board()


def _curves(choice: CauseSelection, data: DataSet, label: str, what: Method) -> None:
    """Mean causal curves of one intervention, a line per model."""
    found = []
    for spec in choice.specs:
        kept = interventions.stored(choice.compute, spec, what, choice.pairs)
        job = interventions.job(choice.compute, spec, what, choice.pairs, choice.scope)
        failed_items(job, kept.failed, "cause.")
        if not kept.results:
            continue
        if reason := too_few(spec.name, len(kept.results), len(choice.pairs) - len(kept.failed)):
            st.caption(panels.plain(reason))
        else:
            found.append(
                interventions.data_set_cause(
                    choice.compute, spec, what, choice.pairs, data.name, choice.words
                )
            )
    if not found:
        return
    known = [one.provenance() for one in found]
    moved = what.name == "relocation"
    title = QUANTITIES[what.name]

    def draw(style: Style) -> go.Figure:
        """Means with their bands."""
        return causal_curves(found, style)

    panels.show(draw(panels.screen_style(height_px=340)), f"cause.set.{what.name}", title)
    show_table(intervention_tables.cause_frame(found))
    st.caption(
        panels.plain(intervention_tables.READ_WHOLE if moved else intervention_tables.READ_ONLY)
    )
    notes_said = list(dict.fromkeys(note for one in found for note in one.notes))
    if notes_said:
        more = f"; and {len(notes_said) - 3} more such notes" if len(notes_said) > 3 else ""
        st.caption(panels.plain(f"Of some pairs: {'; '.join(notes_said[:3])}{more}."))
    panels.caption(known)
    panels.downloads(
        f"cause.set.{what.name}",
        [data.name, label],
        known,
        figures={label: draw},
        frame=intervention_tables.causal_curve_frame(found),
    )


def _agreements(choice: CauseSelection, data: DataSet) -> None:
    """Which method tells the truth about position?"""
    rows: list[tuple[str, Agreement]] = []
    known: list[Provenance] = []
    for spec in choice.specs:
        for label, what in choice.interventions.items():
            for one in choice.judged.values():
                try:
                    found = interventions.agreement_of(
                        choice.compute, spec, one, what, choice.pairs
                    )
                except UserError:
                    continue
                rows.append((label, found))
                model = choice.compute.identify(spec)
                known.append(of_agreement(model, what, data.name, found, choice.words))
    if not rows:
        return
    st.markdown("**Which method tells the truth about position?**")
    table = intervention_tables.agreement_frame(rows)
    show_table(table)
    st.caption(
        "Spearman correlation of a method's curves with causal curves, 95% bootstrap intervals "
        "over documents. Relocation counts at places where the evidence is read whole; pairs with "
        "fewer than two are left out. Of the means: the mean curve with the mean causal curve at "
        "11 places, what a chart of the data set shows. Mean over pairs: each pair's own, where "
        "the places of relevant words weigh more than any bias."
    )
    panels.downloads("cause.agreement", [data.name, "agreement"], known, frame=table)
