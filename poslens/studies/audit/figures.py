"""Dark sentences by their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.evaluation.audit import N_BINS, DarkCurve
from poslens.figures.figure_base import (
    Provenances,
    canvas,
    faint,
    group,
    legend_name,
    positions,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.audit.service import Audit

CENTRES = (np.arange(N_BINS) + 0.5) * 100 / N_BINS


def dark_curves(found: Sequence[Audit], style: Style, *, provenance: Provenances = ()) -> go.Figure:
    """Share of dark sentences by place, a line for each index in the documents' own order and a
    thin one with their sentences shuffled. Bands are 95% intervals."""
    what = found[0].setup if found else None
    title = f"Dark {what.probe}s (not in the top {what.top})" if what else "Dark sentences"
    figure = canvas("audit", style, "Place in the document (%)", f"{title}, %", provenance)
    for index, one in enumerate(found):
        look = style.line(index)
        for order, curve in one.curves.items():
            own = order == "own"
            key = f"index {index}"
            _band(figure, curve, faint(str(look["color"]), 0.16 if own else 0.07), key)
            name = one.name if own else f"{one.name}, shuffled"
            trace = go.Scatter(
                x=CENTRES,
                y=100 * curve.share,
                mode="lines+markers" if own else "lines",
                name=legend_name(name, style),
                line=look if own else {**look, "width": 0.6 * style.line_width},
                opacity=1 if own else 0.7,
                marker={
                    "color": look["color"],
                    "size": 0.5 * style.font_size,
                    "symbol": style.symbol(index),
                },
                customdata=[_interval(curve, b) for b in range(N_BINS)],
                hovertemplate="%{y:.1f}%%{customdata}",
            )
            role = "original order" if own else "shuffled"
            figure.add_trace(group(trace, key, one.name, role))
    figure.update_yaxes(rangemode="tozero")
    return with_legend(positions(figure), style)


def _interval(curve: DarkCurve, b: int) -> str:
    ends = (
        ""
        if curve.low is None or curve.high is None
        else f" [{100 * curve.low[b]:.1f}, {100 * curve.high[b]:.1f}]"
    )
    return f"{ends} of {int(curve.n[b]):,}"


def _band(figure: go.Figure, curve: DarkCurve, colour: str, key: str) -> None:
    if curve.low is None or curve.high is None:
        return
    known = np.isfinite(curve.low)
    x = CENTRES[known]
    figure.add_trace(
        go.Scatter(
            x=np.concatenate([x, x[::-1]]),
            y=100 * np.concatenate([curve.high[known], curve.low[known][::-1]]),
            fill="toself",
            fillcolor=colour,
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            legendgroup=key,
            showlegend=False,
        )
    )
