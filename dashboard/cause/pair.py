"""The Cause page's first tab: interventions on one pair, which move its evidence, remove parts of
the document, or shift the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.curves.positions import document_curve
from poslens.attribution.curves.text_axis import curve_over_text
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.agreement import causal_correlation
from poslens.attribution.interventions.displacement import Displacement, displacement_method
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.methods import METHODS
from poslens.attribution.types import Method, Provenance
from poslens.compute.compute import Explained
from poslens.dashboard.cause.items import CausePair
from poslens.dashboard.cause.relocation import RELOCATION, move_evidence
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, links, panels, say
from poslens.dashboard.widgets.pair_picker import choose_pair
from poslens.figures.palettes import Style
from poslens.studies.cause import tables as intervention_tables
from poslens.studies.cause.figures import causes_over_curve, displacements


def section(offered: DataSet, models: Sequence[str], method: Method, ablation: Method) -> None:
    """The pair picker, and the interventions on the selected pair."""
    pair = choose_pair(offered, models, method)
    if pair is None or not models:
        st.info("Select a pair and a model.")
        return
    subject = CausePair(pair, choices.data_of(pair), tuple(models), method, ablation)
    moved = move_evidence(subject)
    with panels.guarded():
        _against_the_method(subject, moved)
    with panels.guarded():
        _displaced(subject)
    links.other_views("cause", subject.data, pair.pair_id, models, method)


def _against_the_method(subject: CausePair, moved: dict[str, Relocation]) -> None:
    """Each model's attribution curve, overlaid with the effects of both interventions."""
    title, ablation = METHODS[subject.method.name].title, subject.ablation
    say.heading(f"{title} vs. intervention")
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
                "relocation": causal_correlation(curve, moved[name]) if name in moved else None,
                "ablation": causal_correlation(curve, removed[name]),
            }
            words = ", ".join(
                f"{value:+z.2f} with {cause}"
                for cause, value in correlations.items()
                if value is not None
            )
            facts = [
                name,
                f"{title}, Spearman correlation: {words}" * bool(words),
                removed[name].note,
            ]
            say.sentence(" · ".join(filter(None, facts)))
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
                say.caption(reason)
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
        say.caption(f"{note[0].upper()}{note[1:]}.")
    panels.caption(provenance)
    panels.downloads(
        "cause.displacement",
        [subject.pair.pair_id, "displacement"],
        provenance,
        figures={"Displacement": lambda style: displacements(shifted, style, provenance)},
        tables={"Numbers": lambda: intervention_tables.displacement_frame(shifted)},
    )
