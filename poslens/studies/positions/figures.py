"""The figure of nDCG@10 by position of the evidence."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from poslens.attribution.evaluation.position_effect import PositionEffect
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import (
    band,
    canvas,
    faint,
    group,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.positions.summary import PositionSummary

TITLE = "Evidence position (0% first, 100% last)"


def ndcg_by_position(
    summaries: Sequence[PositionSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """nDCG@10 by position over the same queries, a line for each model. Bands are 95% intervals of
    each query's nDCG@10 minus its mean over positions, so they exclude differences between queries.
    Thin lines are the null control, which moves another sentence instead of the evidence."""
    figure = canvas("position_effect", style, TITLE, "nDCG@10", provenance)
    for number, summary in enumerate(summaries):
        look, key = style.line(number), f"model {number}"
        effects = [("", summary.effect)] + (
            [("another sentence moved", summary.null)] if summary.null is not None else []
        )
        for role, effect in effects:
            x = [100 * position for position in effect.positions]
            _band(figure, x, effect, faint(str(look["color"]), 0.07 if role else 0.16), key)
            name = summary.name if not role else f"{summary.name}, {role}"
            trace = go.Scatter(
                x=x,
                y=[value.value for value in effect.ndcg],
                mode="lines+markers" if not role else "lines",
                name=legend_name(name, style),
                line=look if not role else {**look, "width": 0.6 * style.line_width},
                marker=style.marker(number, 0.6),
                customdata=[
                    [str(value), f"{rank.value:.2f}"]
                    for value, rank in zip(effect.ndcg, effect.rank, strict=True)
                ],
                hovertemplate="%{customdata[0]}, mean rank %{customdata[1]}",
            )
            figure.add_trace(group(trace, key, summary.name, role))
    figure.update_xaxes(
        range=[-2, 102],
        tickvals=list(range(0, 101, 20)),
        unifiedhovertitle={"text": "position %{x:.0f}%"},
    )
    figure.update_layout(hovermode="x unified")
    return with_legend(figure, style)


def _band(figure: go.Figure, x: list[float], effect: PositionEffect, colour: str, key: str) -> None:
    low, high = list[float](), list[float]()
    for mean, own in zip(effect.ndcg, effect.deviations, strict=True):
        if own.interval is None:
            return
        low.append(mean.value + own.interval[0] - own.value)
        high.append(mean.value + own.interval[1] - own.value)
    figure.add_trace(band(x, low, high, colour, key))
