"""The figures of the study `debias`: quality against position bias, and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.errors import UserError
from poslens.compute.compute import DataSetCurve
from poslens.figures.curves import mean_curves
from poslens.figures.figure_base import (
    WITHIN_UNIT,
    canvas,
    faint,
    intervals,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.cause.service import DataSetCause
from poslens.studies.debias.summary import DebiasSummary

_SYMBOLS = {
    "plain": "square",
    "debiased": "circle",
    "calibrated": "triangle-up",
    "debiased and calibrated": "diamond",
}
_PSI = "PSI (0: equally good at every position)"

Y = Callable[[DebiasSummary], Estimate | None]


def quality_front(summaries: Sequence[DebiasSummary], style: Style) -> go.Figure:
    """nDCG@10 of held-out queries against the size of the relocation difference of held-out pairs,
    or, without training, its harmonic mean over positions against PSI: further left is less
    position bias, further up better ranking. See `_front`.

    Raises:
        UserError: the position bias of every model is unknown.
    """
    if not summaries[0].trains:
        y_title = "Harmonic mean of nDCG@10"
        return _front(summaries, style, (_PSI, y_title), _harmonic)
    titles = "Size of the relocation difference (score)", "nDCG@10, held-out queries"
    return _front(summaries, style, titles, lambda summary: summary.quality)


def mean_front(summaries: Sequence[DebiasSummary], style: Style) -> go.Figure:
    """Mean nDCG@10 against PSI, without training. See `_front`.

    Raises:
        UserError: a model was trained, or no model has a PSI.
    """
    if summaries[0].trains:
        raise UserError("PSI is measured only without training: set the steps to 0.")
    return _front(summaries, style, (_PSI, "Mean nDCG@10"), lambda summary: summary.quality)


def _harmonic(summary: DebiasSummary) -> Estimate | None:
    return summary.ranking.harmonic if summary.ranking else None


def _front(
    summaries: Sequence[DebiasSummary],
    style: Style,
    titles: tuple[str, str],
    y: Y,
) -> go.Figure:
    """A measure of quality against the size of the position bias (`bias_and_quality`), with a line
    from an uncalibrated version through the strengths of each block size and depth. Bars are 95%
    intervals. Filled points are on the Pareto front: no other version has both a higher nDCG@10
    and less position bias. Calibrated versions have smaller points, because those of strength 0
    coincide with the uncalibrated version. The recommended version has a ring, and hollow diamonds
    show the PSI under permutation.

    Raises:
        UserError: the position bias of every model is unknown.
    """
    if all(summary.bias_and_quality[0] is None for summary in summaries):
        raise UserError(
            "Without evidence at several positions, or evidence to move, there is no position bias "
            "to draw."
        )
    figure = canvas("debias_front", style, *titles)
    for number, (origin, versions) in enumerate(_families(summaries)):
        look = style.line(number)
        last = versions[-1]
        name, setting = last.name, last.point.calibration
        if setting is not None and len(versions) > 1:
            depth = "half of the" if setting.layers is None else setting.layers
            name = f"{last.point.base.name}, blocks of {setting.block} tokens, last {depth} layers"
        key = f"versions {number}"
        if origin is not None:
            # Without the point of the origin, whose symbol the legend would otherwise show.
            start = _trace([origin, versions[0]], y, style, "", look)
            figure.add_trace(
                start.update(
                    mode="lines",
                    error_y={"visible": False},
                    hoverinfo="skip",
                    hovertemplate=None,
                    showlegend=False,
                    legendgroup=key,
                )
            )
        trace = _trace(versions, y, style, legend_name(name, style), look)
        figure.add_trace(trace.update(legendgroup=key))
    ink, muted = style.colors.ink, style.colors.muted
    permuted = [
        (ranking.psi_under_permutation, height.value)
        for summary in summaries
        if (ranking := summary.ranking) and (height := y(summary))
    ]
    if permuted:
        figure.add_trace(
            go.Scatter(
                x=[x for x, _ in permuted],
                y=[height for _, height in permuted],
                mode="markers",
                name="PSI under permutation",
                marker={"symbol": "diamond-open", "color": muted, "size": 0.5 * style.font_size},
                hovertemplate="under permutation %{x:.3f}<extra></extra>",
            )
        )
    for summary in summaries:
        height = y(summary)
        if summary.recommended and height is not None:
            figure.add_trace(
                go.Scatter(
                    x=[summary.bias_and_quality[0]],
                    y=[height.value],
                    mode="markers",
                    name="recommended",
                    marker={
                        "symbol": "circle-open",
                        "size": 1.8 * style.font_size,
                        "color": ink,
                        "line": {"width": 2},
                    },
                    hoverinfo="skip",
                )
            )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(**WITHIN_UNIT)
    return with_legend(figure, style)


def _families(
    summaries: Sequence[DebiasSummary],
) -> list[tuple[DebiasSummary | None, list[DebiasSummary]]]:
    """The versions as lines, each with the version it starts at: each uncalibrated version alone,
    and for each block size and depth the calibrated versions in order of strength, starting at the
    uncalibrated one."""
    families: dict[tuple[object, ...], list[DebiasSummary]] = {}
    origins: dict[tuple[object, ...], DebiasSummary] = {}
    for summary in summaries:
        point, setting = summary.point, summary.point.calibration
        origin = (point.base, point.recipe)
        if setting is None:
            origins[origin] = summary
            families[origin] = [summary]
        else:
            families.setdefault((*origin, setting.block, setting.layers), []).append(summary)
    return [
        (origins.get(key[:2]) if len(key) > 2 else None, sorted(family, key=_strength))
        for key, family in families.items()
    ]


def _strength(summary: DebiasSummary) -> float:
    return summary.point.calibration.strength if summary.point.calibration else -1.0


def _trace(
    versions: Sequence[DebiasSummary], y: Y, style: Style, name: str, look: dict[str, object]
) -> go.Scatter:
    points = [
        (summary, x, height)
        for summary in versions
        if (x := summary.bias_and_quality[0]) is not None and (height := y(summary)) is not None
    ]
    color = str(look["color"])
    return go.Scatter(
        x=[x for _, x, _ in points],
        y=[height.value for _, _, height in points],
        mode="lines+markers" if len(points) > 1 else "markers",
        name=name,
        line=look,
        marker={
            "symbol": [_SYMBOLS[summary.point.kind] for summary, _, _ in points],
            "size": [
                (1.4 if summary.point.calibration is None else 0.8) * style.font_size
                for summary, _, _ in points
            ],
            "opacity": 1,  # markers of several sizes are translucent by default
            "color": [color if s.on_front else style.colors.paper for s, _, _ in points],
            "line": {"color": color, "width": 1.5},
        },
        error_y=intervals([height for _, _, height in points], faint(color, 0.5)),
        customdata=[[escape(summary.name), str(height)] for summary, _, height in points],
        hovertemplate="%{customdata[0]}<br>position bias %{x:.4f}, %{customdata[1]}<extra></extra>",
    )


def _curves(
    average_of: Callable[[DebiasSummary], DataSetCause | DataSetCurve | None],
    y_title: str,
    absent: str,
    summaries: Sequence[DebiasSummary],
    style: Style,
) -> go.Figure:
    """Mean curves over held-out documents of the plain model, the debiased model and a calibrated
    one.

    Raises:
        UserError: none was computed.
    """
    averages = map(average_of, drawn(summaries))
    curves = [average.summary.curve for average in averages if average is not None]
    if not curves:
        raise UserError(f"{absent}: set the number of pairs to more than 0.")
    return mean_curves(curves, style, y_title=y_title)


relocation_curves = partial(
    _curves,
    lambda summary: summary.cause,
    "Score minus the pair's mean over positions",
    "No evidence was moved",
)
"""Mean score by position of the evidence, minus the pair's mean."""

saliency_curves = partial(
    _curves, lambda summary: summary.saliency, "Saliency", "No saliency was computed"
)
"""Mean saliency by position."""


def drawn(summaries: Sequence[DebiasSummary]) -> list[DebiasSummary]:
    """The plain, the debiased and a calibrated version of each base model: the tested one, or the
    first."""
    shown: dict[tuple[object, str], DebiasSummary] = {}
    for summary in summaries:
        point = summary.point
        if point.kind != "debiased and calibrated":
            key = (point.base, point.kind)
            shown[key] = summary if summary.tested else shown.get(key, summary)
    return list(shown.values())
