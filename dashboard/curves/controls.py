"""Mean curves minus those of their null controls."""

from __future__ import annotations

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
)
from poslens.attribution.types import Provenance
from poslens.compute.provenance import of_controlled
from poslens.dashboard.curves.results import CurvesView
from poslens.dashboard.widgets import panels, say
from poslens.dashboard.widgets.null_controls import job
from poslens.dashboard.widgets.run_board import run_board
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.palettes import Style
from poslens.studies.cause.figures import minus_null_curves
from poslens.studies.cause.tables import controlled_frame
from poslens.studies.curves.null_controls import controlled, controls, query_controls_agree


def section(view: CurvesView, kind: Control) -> None:
    """Progress of the controls' curves, the differences, and the conclusions that they support."""
    compute, method, pairs, among = view.compute, view.method, view.selection.pairs, view.data.pairs
    specs, nulls = view.specs(), controls(kind, pairs, among)
    shown: list[tuple[str, ControlledCurve]] = []
    provenance: list[Provenance] = []
    for spec in specs:
        with panels.guarded():
            run = job(compute, spec, method, kind, nulls, view.scope)
            if run.active or run.n_done() < run.total:
                label = f"{spec.name}, {CONTROLS[kind]}"
                run_board([run], "curves.null.", f".{spec.name}", label=label)
            try:
                controlled_curve = controlled(compute, spec, method, kind, pairs, among)
            except UserError:
                continue
            shown.append((spec.name, controlled_curve))
            model, words = compute.identify(spec), view.selection.words
            provenance.append(of_controlled(model, method, view.data.name, controlled_curve, words))
    if not shown:
        st.info("Compute the curves and their controls: no pair has both yet.")
        return

    def draw(style: Style) -> go.Figure:
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
        [view.data.name, method.name, "minus", kind],
        provenance,
        figures={"Minus control": draw},
        tables={"Numbers": lambda: frame},
    )
