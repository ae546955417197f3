"""The evidence of one pair at each position in its document, with the models' scores."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.interventions.relocation import (
    N_POSITIONS,
    Relocation,
    Variant,
    rank_among,
    relocated,
    relocation_method,
)
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array
from poslens.dashboard.cause.items import CausePair
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import panels, say, sending
from poslens.dashboard.widgets.guard import fragment
from poslens.figures.palettes import Style
from poslens.studies.audit.summary import measured_limit
from poslens.studies.cause import service as interventions
from poslens.studies.cause.figures import relocation_scores
from poslens.studies.cause.tables import relocation_frame

RELOCATION = relocation_method()
AROUND = 320  # characters shown on either side of the evidence


def move_evidence(subject: CausePair) -> dict[str, Relocation]:
    """Compute and draw the scores with the evidence at each position, and return them by model."""
    moved: dict[str, Relocation] = {}
    with panels.guarded():
        variants, note = relocated(subject.pair, N_POSITIONS)
        failures = set[str]()
        for name in subject.models:
            with (
                panels.guarded(failures),
                st.spinner(f"Moving the evidence under {panels.plain(name)}", show_time=True),
            ):
                if subject.may_send(name, "moving the evidence", RELOCATION):
                    moved[name] = subject.intervened(name, RELOCATION)
        if note:
            say.caption(f"{note[0].upper()}{note[1:]}.")
        if moved:
            _mover(subject, moved, variants)
    return moved


@fragment()
def _mover(subject: CausePair, moved: dict[str, Relocation], variants: Sequence[Variant]) -> None:
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
        say.caption("A cross marks the unchanged document.")
    for name in unknown:
        measured = subject.data and measured_limit(
            subject.compute, subject.spec(name), subject.data
        )
        say.caption(
            f"The context limit of {name} is unknown (rings with a dot), so every position "
            "counts." + (f" The audit of this data set measured it: {measured}" if measured else "")
        )
    for name, effect in moved.items():
        if effect.lost is not None:
            n = int((~effect.whole).sum())
            slope = effect.last_minus_first
            say.caption(
                f"{name} truncates the evidence at {n} of {len(effect.scores)} positions "
                f"(hollow points), where the score changes by {-effect.lost:+z.4f}. The "
                "last-minus-first difference uses the other positions"
                + ("." if slope is None else f": {slope:+z.4f}.")
            )
    panels.caption(provenance)
    panels.downloads(
        "cause.relocation",
        [subject.pair.pair_id, "relocation"],
        provenance,
        figures={"Relocation": draw},
        tables={"Numbers": lambda: relocation_frame(moved, others, unknown)},
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

    def arrow(way: str, by: int, end: str) -> None:
        st.button(
            "",
            icon=f":material/arrow_{way}:",
            key=f"cause.{way}",
            on_click=step,
            args=(by,),
            help=panels.plain(f"Move the evidence towards the {end}"),
        )

    step(0)  # another pair may have fewer positions
    with st.container(horizontal=True, vertical_alignment="bottom", wrap=False):
        arrow("back", -1, "beginning")
        position = st.select_slider(
            "Position of the evidence",
            range(len(variants)),
            key="cause.place",
            format_func=lambda k: f"{100 * variants[k].position:.0f}%",
        )
        arrow("forward", 1, "end")
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
                    f"{change:+z.4f}",
                    delta_color="normal" if round(change, 4) else "off",
                    delta_arrow="auto" if round(change, 4) else "off",
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
    # `plain` removes white space at the ends; Chinese has none there.
    left = " " if before[-1:].isspace() else ""
    right = " " if after[:1].isspace() else ""
    with st.container(border=True, key="cause.text"):
        st.markdown(
            f"{head}{panels.plain(before)}{left}:orange-background[{evidence}]{right}"
            f"{panels.plain(after)}{tail}"
        )
