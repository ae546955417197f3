"""Unretrieved sentences by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.evaluation.audit import N_BINS, UnretrievedCurve
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import (
    band,
    canvas,
    faint,
    group,
    legend_name,
    positions,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.audit.summary import AuditSummary

CENTRES = (np.arange(N_BINS) + 0.5) * 100 / N_BINS


def unretrieved_by_position(
    summaries: Sequence[AuditSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """Share of unretrieved sentences by position: for each index a line for documents in original
    order, and a thin one for their sentences in random order. Bands are 95% intervals."""
    index = summaries[0].index if summaries else None
    title = (
        f"Unretrieved {index.query_form}s (top {index.top})" if index else "Unretrieved sentences"
    )
    figure = canvas("audit", style, "Position in the document (%)", f"{title}, %", provenance)
    for number, summary in enumerate(summaries):
        look = style.line(number)
        for order, curve in summary.curves.items():
            original = order == "original"
            key = f"index {number}"
            _band(figure, curve, faint(str(look["color"]), 0.16 if original else 0.07), key)
            name = summary.name if original else f"{summary.name}, shuffled"
            trace = go.Scatter(
                x=CENTRES,
                y=100 * curve.share,
                mode="lines+markers" if original else "lines",
                name=legend_name(name, style),
                line=look if original else {**look, "width": 0.6 * style.line_width},
                opacity=1 if original else 0.7,
                marker=style.marker(number, 0.5),
                customdata=[_interval(curve, b) for b in range(N_BINS)],
                hovertemplate="%{y:.1f}%%{customdata}",
            )
            role = "original order" if original else "shuffled"
            figure.add_trace(group(trace, key, summary.name, role))
    figure.update_yaxes(rangemode="tozero")
    return with_legend(positions(figure), style)


def _interval(curve: UnretrievedCurve, b: int) -> str:
    ends = (
        ""
        if curve.low is None or curve.high is None
        else f" [{100 * curve.low[b]:.1f}, {100 * curve.high[b]:.1f}]"
    )
    return f"{ends} of {int(curve.n[b]):,}"


def _band(figure: go.Figure, curve: UnretrievedCurve, colour: str, key: str) -> None:
    if curve.low is None or curve.high is None:
        return
    values = np.isfinite(curve.low)
    low, high = 100 * curve.low[values], 100 * curve.high[values]
    figure.add_trace(band(CENTRES[values], low, high, colour, key))
