"""Subtraction of null controls from curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import INDEX_MARGIN
from poslens.attribution.interventions.null_controls import (
    CONTROLS,
    QUERY_CONTROLS,
    Control,
    ControlledCurve,
    controls_for,
    null_method,
)
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.cache.shipped.preferences import verdict
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_controlled
from poslens.compute.runs import Job
from poslens.dashboard.widgets import choices, panels, say
from poslens.dashboard.widgets.run_board import run_board
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.palettes import Style
from poslens.studies.cause.figures import minus_null_curves
from poslens.studies.cause.tables import controlled_frame
from poslens.studies.curves.null_controls import controlled, controls, query_controls_agree


def switch(method: Method) -> Control | None:
    """Choose whether to subtract a null control from the method's curves, and which."""
    labels = ["off", *(CONTROLS[kind] for kind in controls_for(method))]
    chosen = choices.one_of(
        "Subtract control",
        labels,
        "null",
        help="Subtracts from each pair's curve its curve under a control: an unrelated query, the "
        "document's sentences in random order, or neutral text instead of the document. What "
        "remains is due to what the control changes. For saliency, the query-free profile (the "
        "part that does not depend on the query) can be subtracted too.",
    )
    return _kind(chosen, method)


def chosen(method: Method) -> Control | None:
    """The selected control; None if the switch has not been shown yet."""
    return _kind(st.session_state.get("null"), method)


def _kind(chosen: object, method: Method) -> Control | None:
    return next((kind for kind in controls_for(method) if CONTROLS[kind] == chosen), None)


NOT_MEASURED = (
    "Subtract the curve of an unrelated query to see how much of a curve depends on the query."
)


def _subtract(kind: Control) -> None:
    st.session_state["null"] = CONTROLS[kind]


def hint(method: Method, kind: Control | None, *, offered: bool = True) -> None:
    """What the method itself prefers, what a curve without a null control doesn't show, and a
    button that subtracts the control. `offered` is False for texts outside any data set, which have
    no control."""
    if sentence := verdict(method):
        say.caption(sentence)
    entry = METHODS[method.name]
    text = entry.caveat or (NOT_MEASURED if entry.needs_query else "")
    if not text or kind is not None:
        return
    answer: Control = "shuffled" if entry.caveat else "unrelated"
    with st.container(horizontal=True, vertical_alignment="center"):
        say.caption(text, width="content")
        if offered:
            st.button(
                f"Subtract control: {CONTROLS[answer]}",
                key="null.subtract",
                on_click=_subtract,
                args=(answer,),
                type="tertiary",
            )


def job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    kind: Control,
    nulls: Sequence[TextPair],
    scope: str,
) -> Job:
    """The job that computes a model's control attributions. It is identified by the scope of the
    curves, not by the control pairs."""
    how = null_method(kind, method)
    job = compute.attribution_job(spec, how, nulls, f"{scope} minus {kind}")
    return replace(job, doing=f"{job.doing}, {CONTROLS[kind]}")


def active(
    compute: Compute,
    specs: Sequence[RetrieverSpec],
    method: Method,
    scope: str,
    kind: Control | None,
) -> bool:
    """Whether controls are being computed."""
    return kind is not None and any(
        job(compute, spec, method, kind, (), scope).active for spec in specs
    )


def section(
    compute: Compute,
    specs: Sequence[RetrieverSpec],
    method: Method,
    kind: Control,
    pairs: Sequence[TextPair],
    among: Sequence[TextPair],
    scope: str,
    words: str,
) -> None:
    """Progress of the controls' curves, the differences, and the conclusions that they support."""
    nulls = controls(kind, pairs, among)
    shown: list[tuple[str, ControlledCurve]] = []
    provenance: list[Provenance] = []
    for spec in specs:
        with panels.guarded():
            run = job(compute, spec, method, kind, nulls, scope)
            if run.active or run.n_done() < run.total:
                label = f"{spec.name}, {CONTROLS[kind]}"
                run_board([run], "curves.null.", f".{spec.name}", label=label)
            try:
                controlled_curve = controlled(compute, spec, method, kind, pairs, among)
            except UserError:
                continue
            shown.append((spec.name, controlled_curve))
            model = compute.identify(spec)
            provenance.append(
                of_controlled(model, method, pairs[0].dataset, controlled_curve, words)
            )
    if not shown:
        st.info("Compute the curves and their controls: no pair has both yet.")
        return

    def draw(style: Style) -> go.Figure:
        """Differences with their bands."""
        return minus_null_curves(shown, method, style, provenance)

    panels.show(
        draw(panels.screen_style()),
        "curves.null.figure",
        f"Curves minus their control ({CONTROLS[kind]})",
    )
    for name, controlled_curve in shown:
        say.sentence(f"{name}: {controlled_curve.sentence}")
    for spec in specs if kind in QUERY_CONTROLS else ():
        with panels.guarded():
            agreed = query_controls_agree(compute, spec, method, pairs, among)
            if agreed is not None:
                first, other = (CONTROLS[each] for each in QUERY_CONTROLS)
                say.caption(
                    f"{spec.name}: the mean curves of {first} and {other} correlate with "
                    f"{agreed.text('.2f')} over {agreed.n:,} pairs."
                )
    frame = controlled_frame(shown)
    summary = pd.DataFrame(
        [
            (
                name,
                controlled.n,
                controlled.n_documents,
                str(controlled.index or ""),
                str(controlled.distance or ""),
            )
            for name, controlled in shown
        ],
        columns=["model", "n", "documents", "index minus control's", "distance from control"],
    )
    show_table(summary)
    say.caption(
        f"Control: {CONTROLS[kind]}. Each pair's curve is compared with its own control; bands "
        "and intervals are 95% bootstrap intervals over documents. Distance: mean over "
        "positions of the absolute difference of the two mean curves, divided by the mean of "
        "the curve's absolute values; 0 is no difference. Its interval is one-sided, from 0. "
        "Verdict on the difference of the indices: higher or lower if p < 0.05; equivalent if "
        f"its 90% interval (two one-sided tests at 5%) is within {INDEX_MARGIN} of 0; "
        f"otherwise, or with fewer than {MIN_DOCUMENTS} documents, too few documents."
    )
    panels.caption(provenance)
    panels.downloads(
        "curves.null",
        [pairs[0].dataset, method.name, "minus", kind],
        provenance,
        figures={"Minus control": draw},
        tables={"Numbers": lambda: frame},
    )
