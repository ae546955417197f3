"""The figure of the command `calibrate`: quality of rankings against position sensitivity."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.figures.figure_base import (
    Provenances,
    canvas,
    faint,
    group,
    intervals,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.debias.service import HALF, DebiasResult, Point

_SYMBOLS = ("circle", "triangle-up", "triangle-down", "x", "cross")
"""Symbols of block sizes and depths. A square is the plain model, a diamond the permutation
baseline."""

_DEPTHS = {HALF: "last half of layers", "all": "all layers"}
Measure = Literal["mean", "harmonic"]
TITLES = {"mean": "Mean nDCG@10", "harmonic": "Harmonic mean of nDCG@10"}


def front(
    result: DebiasResult, measure: Measure, style: Style, *, provenance: Provenances = ()
) -> go.Figure:
    """nDCG@10 against PSI, with a line from the plain model through the strengths of each block
    size and depth. Bars are 95% intervals. Filled points are on the Pareto front: no other setting
    has both a higher nDCG@10 and a lower PSI. Hollow diamonds show the PSI under permutation."""
    figure = canvas(
        "debias_front",
        style,
        "PSI (0: equally good at every position)",
        TITLES[measure],
        provenance,
    )
    plain, *others = result.points
    families: dict[tuple[int, str], list[Point]] = {}
    for setting in others:
        calibration = setting.spec.calibration
        assert calibration is not None  # only the first point is plain
        key = (calibration.block, str(calibration.layers or HALF))
        families.setdefault(key, []).append(setting)
    for index, ((block, depth), points) in enumerate(families.items()):
        look = style.line(index)
        line = sorted(points, key=lambda point: point.strength)
        name = f"blocks of {block} tokens, {_DEPTHS.get(depth, f'last {depth} layers')}"
        symbol = _SYMBOLS[index % len(_SYMBOLS)]
        trace = _trace([plain, *line], measure, style, name, look, symbol)
        figure.add_trace(group(trace, f"family {index}", name))
    ink = style.colours.ink
    figure.add_trace(_trace([plain], measure, style, plain.name, {"color": ink}, symbol="square"))
    permuted = [point for point in result.points if point.quality.psi_under_permutation is not None]
    figure.add_trace(
        go.Scatter(
            x=[point.quality.psi_under_permutation for point in permuted],
            y=[_estimate(point, measure).value for point in permuted],
            mode="markers",
            name="PSI under permutation",
            marker={
                "symbol": "diamond-open",
                "color": style.colours.muted,
                "size": 0.5 * style.font_size,
            },
            customdata=[escape(point.name) for point in permuted],
            hovertemplate="%{customdata}<br>under permutation %{x:.3f}<extra></extra>",
        )
    )
    best = result.recommended
    if best is not None and best is not plain:
        figure.add_trace(
            go.Scatter(
                x=[best.quality.psi],
                y=[_estimate(best, measure).value],
                mode="markers",
                name="recommended",
                marker={
                    "symbol": "circle-open",
                    "size": 1.6 * style.font_size,
                    "color": ink,
                    "line": {"width": 2},
                },
                hoverinfo="skip",
            )
        )
    return with_legend(figure, style)


def _estimate(point: Point, measure: Measure) -> Estimate:
    return point.quality.mean if measure == "mean" else point.quality.harmonic


def _trace(
    points: Sequence[Point],
    measure: Measure,
    style: Style,
    name: str,
    look: dict[str, object],
    symbol: str = "circle",
) -> go.Scatter:
    values = [_estimate(point, measure) for point in points]
    colour = str(look["color"])
    return go.Scatter(
        x=[point.quality.psi for point in points],
        y=[value.value for value in values],
        mode="lines+markers" if len(points) > 1 else "markers",
        name=legend_name(name, style),
        line=look,
        marker={
            "symbol": symbol,
            "size": 0.7 * style.font_size,
            "color": [colour if point.front else style.colours.paper for point in points],
            "line": {"color": colour, "width": 1.5},
        },
        error_y=intervals(values, faint(colour, 0.5)),
        customdata=[[escape(p.name), str(v)] for p, v in zip(points, values, strict=True)],
        hovertemplate="%{customdata[0]}<br>PSI %{x:.3f}, %{customdata[1]}<extra></extra>",
    )
