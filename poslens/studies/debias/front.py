"""The figures of the study `debias`: quality against position bias, and curves."""

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
    """nDCG@10 of held-out queries against the size of the relocation difference of held-out pairs:
    further left is less position bias, further up better ranking. Bars are 95% intervals. Filled
    points are on the Pareto front, and the recommended one has a ring."""
    figure = canvas(
        "debias_quality",
        style,
        "Size of the relocation difference (score)",
        "nDCG@10, held-out queries",
        provenance,
    )
    for number, summary in enumerate(summaries):
        if summary.effect is None or summary.quality is None:
            continue
        colour = str(style.line(number)["color"])
        figure.add_trace(
            go.Scatter(
                x=[abs(summary.effect.value)],
                y=[summary.quality.value],
                mode="markers",
                name=legend_name(summary.name, style),
                marker={
                    "symbol": _SYMBOLS[summary.point.kind],
                    "size": 0.9 * style.font_size,
                    "color": colour if summary.on_front else style.colours.paper,
                    "line": {"color": colour, "width": 1.5},
                },
                error_y=intervals([summary.quality], faint(colour, 0.5)),
                customdata=[
                    [escape(summary.name), summary.effect.text("+.4f"), str(summary.quality)]
                ],
                hovertemplate="%{customdata[0]}<br>relocation difference %{customdata[1]}"
                "<br>nDCG@10 %{customdata[2]}<extra></extra>",
            )
        )
        if summary.recommended:
            figure.add_trace(
                go.Scatter(
                    x=[abs(summary.effect.value)],
                    y=[summary.quality.value],
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
    """Mean score by position of the evidence in held-out documents, minus the pair's mean, of the
    plain model, the debiased model and the first calibrated one."""
    curves = [
        summary.cause.summary.curve for summary in _drawn(summaries) if summary.cause is not None
    ]
    return mean_curves(
        curves, style, y_title="Score minus the pair's mean over positions", provenance=provenance
    )


def saliency_curves(
    summaries: Sequence[DebiasSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """Mean saliency by position in held-out documents, of the models of `relocation_curves`."""
    curves = [
        summary.saliency.summary.curve
        for summary in _drawn(summaries)
        if summary.saliency is not None
    ]
    return mean_curves(curves, style, y_title="Saliency", provenance=provenance)


def _drawn(summaries: Sequence[DebiasSummary]) -> list[DebiasSummary]:
    """The plain, the debiased and the first calibrated version of each base model."""
    first = {(summary.point.base, summary.point.kind): summary for summary in reversed(summaries)}
    return [
        summary
        for (_, kind), summary in reversed(first.items())
        if kind in ("plain", "debiased", "calibrated")
    ]
