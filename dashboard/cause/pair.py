"""The Cause page's first tab: interventions on one pair, which move its evidence, remove parts of
the document, or shift the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.curves.positions import document_curve
from poslens.attribution.curves.text_axis import curve_over_text
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.agreement import with_ablation, with_relocation
from poslens.attribution.interventions.displacement import Displacement, displacement_method
from poslens.attribution.interventions.relocation import (
    N_POSITIONS,
    Relocation,
    Variant,
    rank_among,
    relocated,
    relocation_method,
)
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Method, Provenance, TextPair
from poslens.compute.compute import Compute, Explained
from poslens.compute.provenance import of_intervention
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, links, panels, sending
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.pair_picker import choose_pair
from poslens.figures.palettes import Style
from poslens.studies.audit.summary import measured_limit
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.figures import causes_over_curve, displacements, relocation_scores

RELOCATION = relocation_method()
Intervention = Relocation | Ablation | Displacement
AROUND = 320  # characters shown on either side of the evidence


def section(offered: DataSet, models: Sequence[str], method: Method, ablation: Method) -> None:
    """The pair picker, and the interventions on the selected pair."""
    pair = choose_pair(offered, models, method)
    if pair is None or not models:
        st.info("Select a pair and a model.")
        return
    subject = CausePair(pair, choices.data_of(pair), tuple(models), method, ablation)
    moved = _relocated(subject)
    with panels.guarded():
        _against_the_method(subject, moved)
    with panels.guarded():
        _displaced(subject)
    if subject.data is not None:
        links.other_views("cause", subject.data.name, pair.pair_id, models, method)


@dataclass(frozen=True)
class CausePair:
    """The selected pair, its data set (None for typed texts), and the settings of its
    interventions."""

    pair: TextPair
    data: DataSet | None
    models: tuple[str, ...]
    method: Method
    ablation: Method

    @property
    def compute(self) -> Compute:
        """The service that stores the pair's results."""
        return service_for(self.pair.dataset)

    def spec(self, name: str) -> RetrieverSpec:
        """The retriever with this name.

        Raises:
            UserError: there is no such retriever.
        """
        return choices.spec(name, self.pair.dataset)

    def may_send(
        self, name: str, what: str, *methods: Method, explain: Method | None = None
    ) -> bool:
        """Whether interventions on this pair, and its attribution by `explain`, may be computed. If
        the model is an endpoint, the user must agree first.

        Raises:
            UserError: the endpoint doesn't answer, or the method doesn't fit the model.
        """
        compute, spec = self.compute, self.spec(name)
        if not spec.remote or (model := compute.identify(spec)).stored_only:
            return True
        scope = f"pair {self.pair.pair_id}"
        jobs = [interventions.job(compute, spec, method, [self.pair], scope) for method in methods]
        if explain is not None:
            compute.require_fit(model, explain)
            jobs.append(compute.attribution_job(spec, explain, [self.pair], scope))
        if sending.agreed_to(spec, jobs, (methods, explain, self.pair), what):
            return True
        if explain is not None:
            sending.propose_sentences(compute, spec, explain, [self.pair], scope)
        return False

    def intervened(self, name: str, intervention: Method) -> Any:
        """The result of an intervention on this pair with one model; waits in the device queue.

        Raises:
            UserError: it can't be computed.
        """
        return wait(interventions.ask(self.compute, self.pair, self.spec(name), intervention))

    def provenance(self, name: str, intervention: Method, result: Intervention) -> Provenance:
        """The provenance of an intervention on this pair."""
        model = self.compute.identify(self.spec(name))
        return of_intervention(model, self.pair, intervention, result)


def _relocated(subject: CausePair) -> dict[str, Relocation]:
    """Compute and draw the scores with the evidence at each position, and return them by model."""
    moved: dict[str, Relocation] = {}
    with panels.guarded():
        positions = relocated(subject.pair, N_POSITIONS)
        failures = set[str]()
        for name in subject.models:
            with (
                panels.guarded(failures),
                st.spinner(f"Moving the evidence under {panels.plain(name)}", show_time=True),
            ):
                if subject.may_send(name, "moving the evidence", RELOCATION):
                    moved[name] = subject.intervened(name, RELOCATION)
        if positions.note:
            st.caption(panels.plain(f"{positions.note[0].upper()}{positions.note[1:]}."))
        if moved:
            _mover(subject, moved, positions.variants)
    return moved


@fragment()
def _mover(subject: CausePair, moved: dict[str, Relocation], variants: tuple[Variant, ...]) -> None:
    """Controls that move the evidence through the document, with the scores, which are already
    computed."""
    figure = st.container()
    unknown = [name for name in moved if limits.unknown(subject.spec(name))]
    others = _others(subject, moved)
    at = _position(variants)
    _scores(moved, others, unknown, at)
    _text(variants[at])
    provenance = [
        subject.provenance(name, RELOCATION, relocation) for name, relocation in moved.items()
    ]

    def draw(style: Style, mark: int | None = None) -> go.Figure:
        return relocation_scores(moved, mark, style, provenance, unknown)

    with figure:
        panels.show(
            draw(panels.screen_style(height_px=300), at),
            "cause.scores",
            "Score against the position of the evidence",
        )
    for name in unknown:
        measured = subject.data and measured_limit(
            subject.compute, subject.spec(name), subject.data
        )
        st.caption(
            panels.plain(
                f"The context limit of {name} is unknown (rings with a dot), so every position "
                "counts."
                + (f" The audit of this data set measured it: {measured}" if measured else "")
            )
        )
    for name, effect in moved.items():
        if effect.lost is not None:
            n = int((~effect.whole).sum())
            slope = effect.last_minus_first
            st.caption(
                panels.plain(
                    f"{name} truncates the evidence at {n} of {len(effect.scores)} positions "
                    f"(hollow points), where the score changes by {-effect.lost:+.4f}. The "
                    "last-minus-first difference uses the other positions"
                    + ("." if slope is None else f": {slope:+.4f}.")
                )
            )
    panels.caption(provenance)
    panels.downloads(
        "cause.relocation",
        [subject.pair.pair_id, "relocation"],
        provenance,
        figures={"Relocation": draw},
        tables={"Numbers": lambda: intervention_tables.relocation_frame(moved, others, unknown)},
    )


def _others(subject: CausePair, moved: dict[str, Relocation]) -> dict[str, Array]:
    """Scores of the data set's other documents by model, if the user requests the rank."""
    others: dict[str, Array] = {}
    if subject.data is None or not st.toggle(
        "Rank among the data set's other documents",
        key="rank",
        bind="query-params",
        help=f"At most {interventions.MAX_OTHERS:,} documents of the pair's language, drawn at "
        "random.",
    ):
        return others
    documents = interventions.other_documents(subject.pair, subject.data.pairs)
    for name in moved:
        with panels.guarded(), st.spinner(f"Scoring {len(documents)} other documents"):
            spec = subject.spec(name)
            if _may_rank(subject, spec, documents):
                asked = interventions.ask_others(subject.compute, subject.pair, spec, documents)
                others[name] = wait(asked)
    return others


def _may_rank(subject: CausePair, spec: RetrieverSpec, documents: Sequence[str]) -> bool:
    """Whether other documents may be scored. If the model is an endpoint, the user must agree
    first."""
    compute = subject.compute
    if not spec.remote or compute.identify(spec).stored_only:
        return True
    stored = interventions.stored_scores_of_others(compute, subject.pair, spec, documents)
    if stored is not None:
        return True
    words = f"up to {len(documents) + 1:,} texts"
    return sending.confirmed(
        spec, ("others", subject.pair), "ranking among other documents", lambda: words
    )


def _position(variants: Sequence[Variant]) -> int:
    """The index of the selected evidence position."""

    def step(by: int) -> None:
        to = int(st.session_state.get("cause.place", 0)) + by
        st.session_state["cause.place"] = min(max(to, 0), len(variants) - 1)

    step(0)  # another pair may have fewer positions
    with st.container(horizontal=True, vertical_alignment="bottom", wrap=False):
        st.button(
            "",
            icon=":material/arrow_back:",
            key="cause.back",
            on_click=step,
            args=(-1,),
            help="Move the evidence towards the beginning",
        )
        position = st.select_slider(
            "Position of the evidence",
            range(len(variants)),
            key="cause.place",
            format_func=lambda k: f"{100 * variants[k].position:.0f}%",
        )
        st.button(
            "",
            icon=":material/arrow_forward:",
            key="cause.forward",
            on_click=step,
            args=(1,),
            help="Move the evidence towards the end",
        )
    return int(position)


def _scores(
    moved: dict[str, Relocation], others: dict[str, Array], unknown: Sequence[str], at: int
) -> None:
    """Each model's score, rank and share of evidence read at the selected position."""
    with st.container(horizontal=True, gap="medium"):
        for name, relocation in moved.items():
            # Keep the numbers of one model on one line.
            with st.container(horizontal=True, gap="medium", wrap=False, width="content"):
                change = float(relocation.scores[at]) - relocation.original
                st.metric(
                    panels.plain(name),
                    f"{relocation.scores[at]:.4f}",
                    f"{change:+.4f}",
                    width="content",
                    help="The score at this position, and its difference from the unchanged "
                    "document's score.",
                )
                if name in others:
                    rank = rank_among(float(relocation.scores[at]), others[name])
                    st.metric("Rank", f"{rank:,} of {len(others[name]) + 1:,}", width="content")
                if name in unknown:
                    st.metric(
                        "Evidence read",
                        "unknown",
                        width="content",
                        help="Endpoints truncate without reporting it. The Audit page measures "
                        "where.",
                    )
                elif relocation.read[at] < 1:
                    st.metric(
                        "Evidence read",
                        f"{relocation.read[at]:.0%}",
                        width="content",
                        help="The model truncates the document here, so this position says "
                        "nothing about position bias and is excluded.",
                    )


def _text(variant: Variant) -> None:
    """The text around the evidence at its selected position."""
    start, end = variant.evidence.start, variant.evidence.end
    before, after = variant.text[max(0, start - AROUND) : start], variant.text[end : end + AROUND]
    head = "… " if start > AROUND else ""
    tail = " …" if end + AROUND < len(variant.text) else ""
    evidence = panels.plain(variant.text[start:end])
    with st.container(border=True, key="cause.text"):
        st.markdown(
            f"{head}{panels.plain(before)} :orange-background[{evidence}] "
            f"{panels.plain(after)}{tail}"
        )


def _against_the_method(subject: CausePair, moved: dict[str, Relocation]) -> None:
    """Each model's attribution curve, overlaid with the effects of both interventions."""
    title, ablation = METHODS[subject.method.name].title, subject.ablation
    st.markdown(f"**{panels.plain(title)} vs. intervention**")
    explained: dict[str, Explained] = {}
    removed: dict[str, Ablation] = {}
    failures = set[str]()
    for name in subject.models:
        with (
            panels.guarded(failures),
            st.spinner(f"Removing parts under {panels.plain(name)}", show_time=True),
        ):
            what = "its curve and removing parts"
            if subject.may_send(name, what, ablation, explain=subject.method):
                spec = subject.spec(name)
                explained[name] = wait(subject.compute.ask(subject.pair, spec, subject.method))
                removed[name] = subject.intervened(name, ablation)

    def sources(name: str) -> list[Provenance]:
        provenance = [
            explained[name].provenance(),
            subject.provenance(name, ablation, removed[name]),
        ]
        return provenance + (
            [subject.provenance(name, RELOCATION, moved[name])] if name in moved else []
        )

    def draw(name: str, style: Style) -> go.Figure:
        span, length = subject.pair.evidence, len(subject.pair.document)
        return causes_over_curve(
            curve_over_text(explained[name].attribution, length),
            title,
            moved.get(name),
            removed[name],
            style,
            (span.start / length, span.end / length) if span else None,
            sources(name),
        )

    # Two figures per row.
    columns = [
        column
        for row in range((len(removed) + 1) // 2)
        for column in panels.side_by_side(f"cause.against.{row}")
    ]
    for number, (name, column) in enumerate(zip(removed, columns, strict=False)):
        with column, panels.guarded():
            curve = document_curve(explained[name].attribution)
            correlations = {
                "relocation": with_relocation(curve, moved[name]) if name in moved else None,
                "ablation": with_ablation(curve, removed[name]),
            }
            words = ", ".join(
                f"{value:+.2f} with {cause}"
                for cause, value in correlations.items()
                if value is not None
            )
            facts = [
                name,
                f"{title}, Spearman correlation: {words}" * bool(words),
                removed[name].note,
            ]
            st.markdown(panels.plain(" · ".join(filter(None, facts))))
            panels.show(
                draw(name, panels.screen_style(width_px=panels.BESIDE_PX, height_px=320)),
                f"cause.against.{number}",
                "A method's curve with relocation and ablation over it",
            )
    if removed:
        panels.caption([source for name in removed for source in sources(name)])
        panels.downloads(
            "cause.against",
            [subject.pair.pair_id, subject.method.name, "ablation", str(ablation.params["by"])],
            [subject.provenance(name, ablation, causal) for name, causal in removed.items()],
            figures={name: partial(draw, name) for name in removed},
            tables={"Numbers": lambda: intervention_tables.ablation_frame(removed)},
        )


def _displaced(subject: CausePair) -> None:
    """The scores of the whole text after neutral text, and with shifted position ids."""
    if not st.toggle(
        "Move the whole text, to separate position from content",
        key="displace",
        bind="query-params",
        help="PosLens puts neutral text of several lengths in front; for models with learned "
        "position embeddings, it also shifts the position ids. The document itself is unchanged, "
        "so a change in the score shows that it depends on position.",
    ):
        return
    shifted: dict[str, Displacement] = {}
    provenance: list[Provenance] = []
    for name in subject.models:
        may = False
        with panels.guarded():
            may = subject.may_send(name, "moving the text", displacement_method("prefix"))
        for way in ("prefix", "positions") if may else ():
            displacement = displacement_method(way)
            try:
                with st.spinner(f"Moving the text under {panels.plain(name)}"):
                    label = f"{name}, {'neutral prefix' if way == 'prefix' else 'shifted ids'}"
                    shifted[label] = subject.intervened(name, displacement)
                provenance.append(subject.provenance(name, displacement, shifted[label]))
            except UserError as reason:
                st.caption(panels.plain(str(reason)))
    if not shifted:
        return
    panels.show(
        displacements(shifted, panels.screen_style(height_px=300)),
        "cause.displacements",
        "Score against how far the text was moved",
    )
    for note in dict.fromkeys(
        displacement.note for displacement in shifted.values() if displacement.note
    ):
        st.caption(panels.plain(f"{note[0].upper()}{note[1:]}."))
    panels.caption(provenance)
    panels.downloads(
        "cause.displacement",
        [subject.pair.pair_id, "displacement"],
        provenance,
        figures={"Displacement": lambda style: displacements(shifted, style, provenance)},
        tables={"Numbers": lambda: intervention_tables.displacement_frame(shifted)},
    )
