"""Figures of faithfulness tests: the curves of a pair, mean curves, and gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.faithfulness import Faithfulness, position_order
from poslens.attribution.evaluation.faithfulness_summary import FaithfulnessSummary, MeanCurve
from poslens.attribution.methods import METHODS
from poslens.attribution.types import Method
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import (
    band,
    canvas,
    captioned,
    faint,
    group,
    intervals,
    legend_name,
    marks,
    with_legend,
)
from poslens.figures.palettes import Style

_DASHES = {position_order("front"): "dash", position_order("back"): "dashdot"}


def scalable(results: Mapping[str, Faithfulness]) -> dict[str, Faithfulness]:
    """The results that can be scaled: those whose document scores differently with and without its
    words."""
    return {label: result for label, result in results.items() if result.gap is not None}


def deletion_insertion(
    results: Mapping[str, Faithfulness], kind: str, style: Style, provenance: Provenances = ()
) -> go.Figure:
    """One pair's curves: a line for each of `results` (label -> result), and the mean and standard
    deviation of random orders. Orders by position are drawn as baselines, without markers.

    `kind` is `deletion` (units removed, largest contribution first) or `insertion` (added back).
    Scores are scaled: 1 is the whole document, 0 the document without words. Results that cannot be
    scaled (`scalable`) are omitted.

    Raises:
        ValueError: no result can be scaled.
    """
    results = scalable(results)
    if not results:
        raise ValueError("no result that can be scaled")
    first = next(iter(results.values()))
    figure = _canvas(kind, first.parameters.unit, style)
    random = np.array([first.scaled(curve) for curve in getattr(first.random_orders, kind)])
    mean, std = random.mean(0), random.std(0)
    shares, muted = 100 * first.removed, style.colors.muted
    figure.add_trace(band(shares, mean - std, mean + std, faint(muted, 0.2)))
    figure.add_trace(
        go.Scatter(x=shares, y=mean, mode="lines", name="random order", line=_dotted(style))
    )
    for index, (label, result) in enumerate(results.items()):
        curve = result.scaled(getattr(result, kind))
        _add_line(figure, style, index, label, result.method, 100 * result.removed, curve)
    return captioned(with_legend(figure, style), provenance, style)


def mean_erasure_curves(
    summaries: Mapping[str, FaithfulnessSummary], kind: str, style: Style
) -> go.Figure:
    """The mean curves over pairs of each of `summaries` (label -> summary), with 95% intervals as
    bands, and, dotted, the mean of random orders, one line per model. Orders by position have no
    band. `kind` and units are those of `deletion_insertion`."""
    first = next(iter(summaries.values()))
    figure = _canvas(kind, first.parameters.unit, style)
    models = dict.fromkeys(summary.model for summary in summaries.values())
    drawn = set[str]()
    for index, (label, summary) in enumerate(summaries.items()):
        shares = 100 * np.array(summary.parameters.fractions)
        if summary.model not in drawn:
            drawn.add(summary.model)
            random: MeanCurve = getattr(summary, f"random_{kind}")
            name = "random order" if len(models) == 1 else f"{summary.model}, random order"
            figure.add_trace(
                go.Scatter(
                    x=shares,
                    y=random.mean,
                    mode="lines",
                    name=legend_name(name, style),
                    line=_dotted(style),
                )
            )
        curve: MeanCurve = getattr(summary, kind)
        if curve.low is not None and curve.high is not None and summary.method.name in METHODS:
            color = faint(str(style.line(index)["color"]), 0.15)
            key, edge = f"result {index}", style.edge(index)
            figure.add_trace(band(shares, curve.low, curve.high, color, key, edge))
        _add_line(figure, style, index, label, summary.method, shares, curve.mean)
    return with_legend(figure, style)


def _canvas(kind: str, unit: str, style: Style) -> go.Figure:
    done = "removed" if kind == "deletion" else "restored"
    title = f"{unit.capitalize()}s {done} (%)"
    figure = canvas(f"{kind}_curve", style, title, "Score (full document = 1, empty = 0)")
    figure.update_xaxes(range=[0, 100])
    return figure


def _dotted(style: Style) -> dict[str, object]:
    return {"color": style.colors.muted, "dash": "dot", "width": style.line_width}


def _add_line(
    figure: go.Figure,
    style: Style,
    index: int,
    label: str,
    method: Method,
    shares: NDArray[np.float64],
    curve: ArrayLike,
) -> None:
    """One order's curve; orders by position are drawn as baselines, without markers."""
    dash = _DASHES.get(method)
    trace = go.Scatter(
        x=shares,
        y=curve,
        mode="lines" if dash else "lines+markers",
        name=legend_name(label, style),
        line={**_dotted(style), "dash": dash} if dash else style.line(index),
        **({} if dash else marks(index, len(shares), style)),
    )
    figure.add_trace(group(trace, f"result {index}", label))


def gains(rows: Sequence[tuple[str, Estimate]], title: str, style: Style) -> go.Figure:
    """Estimates with their intervals, one row for each of `rows` (label, estimate), and a line at
    zero. Estimates from too few documents have no interval."""
    figure = canvas("gains", style, title, "")
    rows = rows[::-1]
    estimates = [estimate for _, estimate in rows]
    figure.add_trace(
        go.Scatter(
            x=[estimate.value for estimate in estimates],
            # Labels take two lines, to leave room for the points in a narrow window.
            y=[
                "<br>".join(legend_name(part, style) for part in label.rsplit(", ", 1))
                for label, _ in rows
            ],
            mode="markers",
            error_x={**intervals(estimates, style.colors.ink), "thickness": 1.2, "width": None},
            marker={"color": style.line(0)["color"], "size": 0.6 * style.font_size},
            showlegend=False,
        )
    )
    figure.add_vline(0, line={"color": style.colors.muted, "width": 1, "dash": "dot"})
    # Show all labels, however low the figure is.
    figure.update_yaxes(automargin=True, nticks=0)
    return figure
