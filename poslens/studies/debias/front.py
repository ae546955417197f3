"""The front: quality against position effect, a point for each model."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from poslens.figures.curves import mean_curves
from poslens.figures.figure_base import (
    Provenances,
    canvas,
    faint,
    intervals,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.debias.summary import DebiasSummary

_SYMBOLS = {
    "plain": "square",
    "debiased": "circle",
    "calibrated": "triangle-up",
    "debiased and calibrated": "diamond",
}


def quality_front(
    summaries: Sequence[DebiasSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """nDCG@10 of held-out queries against the relocation difference of held-out pairs, regardless
    of its sign: left is less position bias, up is better. Bars are 95% intervals; filled points
    are on the front, and the recommended one has a ring."""
    figure = canvas(
        "debias_quality",
        style,
        "Size of the relocation difference (score)",
        "nDCG@10, held-out queries",
        provenance,
    )
    for number, one in enumerate(summaries):
        if one.effect is None or one.quality is None:
            continue
        colour = str(style.line(number)["color"])
        figure.add_trace(
            go.Scatter(
                x=[abs(one.effect.value)],
                y=[one.quality.value],
                mode="markers",
                name=legend_name(one.name, style),
                marker={
                    "symbol": _SYMBOLS[one.point.kind],
                    "size": 0.9 * style.font_size,
                    "color": colour if one.on_front else style.colours.paper,
                    "line": {"color": colour, "width": 1.5},
                },
                error_y=intervals([one.quality], faint(colour, 0.5)),
                customdata=[[escape(one.name), one.effect.text("+.4f"), str(one.quality)]],
                hovertemplate="%{customdata[0]}<br>relocation difference %{customdata[1]}"
                "<br>nDCG@10 %{customdata[2]}<extra></extra>",
            )
        )
        if one.recommended:
            figure.add_trace(
                go.Scatter(
                    x=[abs(one.effect.value)],
                    y=[one.quality.value],
                    mode="markers",
                    name="recommended",
                    marker={
                        "symbol": "circle-open",
                        "size": 1.8 * style.font_size,
                        "color": style.colours.ink,
                        "line": {"width": 2},
                    },
                    hoverinfo="skip",
                )
            )
    figure.update_xaxes(rangemode="tozero")
    return with_legend(figure, style)


def relocation_curves(
    summaries: Sequence[DebiasSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """Mean score by position of the evidence in held-out documents, minus the pair's mean: the
    plain model, the debiased one, and the first calibrated one."""
    first = {(one.point.base, one.point.kind): one for one in reversed(summaries)}
    curves = [
        one.cause.summary.curve
        for (_, kind), one in reversed(first.items())
        if one.cause is not None and kind in ("plain", "debiased", "calibrated")
    ]
    return mean_curves(
        curves, style, y_title="Score by position, minus mean", provenance=provenance
    )
