"""Figures of interventions: how the score changes when evidence or text is moved or removed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.displacement import Displacement
from poslens.attribution.interventions.null_controls import CONTROLS, ControlledCurve
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.nouns import uncapitalized
from poslens.attribution.types import Method
from poslens.figures.captions import Provenances
from poslens.figures.curves import mean_curves
from poslens.figures.figure_base import (
    BINS,
    CENTERS,
    POSITION_TITLE,
    TEXT_TITLE,
    UNKNOWN_SYMBOL,
    band,
    canvas,
    faint,
    group,
    legend_name,
    line,
    positions,
    quantity,
    shade,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.cause.service import DataSetCause

QUANTITIES = {
    "relocation": "Score minus the pair's mean over positions",
    "ablation": "Score lost without this part",
}
COSINE = "Cosine with the whole text's vector"


def relocation_scores(
    results: Mapping[str, Relocation],
    place: int | None,
    style: Style,
    provenance: Provenances = (),
    unknown: Collection[str] = (),
) -> go.Figure:
    """The score by position of the evidence, a line for each model, and a cross for the unchanged
    document. Points are hollow if the model did not read the evidence in full, and rings with a dot
    for models in `unknown`, for which it is unknown how much they read. `place` is the index of the
    position to mark."""
    figure = canvas(
        "relocation_scores",
        style,
        "Evidence position (% of the document)",
        "Score",
        provenance,
    )
    for index, (name, relocation) in enumerate(results.items()):
        look = style.line(index)
        trace = go.Scatter(
            x=100 * relocation.positions,
            y=relocation.scores,
            mode="lines+markers",
            line=look,
            marker={
                **style.marker(index, 0.6),
                "symbol": UNKNOWN_SYMBOL
                if name in unknown
                else [style.symbol(index) + ("" if read else "-open") for read in relocation.whole],
            },
            customdata=np.arange(len(relocation.positions)),
            hovertemplate="%{y:.4f}",
            name=legend_name(name, style),
        )
        figure.add_trace(group(trace, f"model {index}", name))
        if place is not None and place < len(relocation.scores):
            figure.add_trace(
                go.Scatter(
                    x=[100 * relocation.positions[place]],
                    y=[relocation.scores[place]],
                    mode="markers",
                    marker={
                        "color": look["color"],
                        "size": 1.3 * style.font_size,
                        "line": {"color": style.colors.ink, "width": 1.5},
                    },
                    hoverinfo="skip",
                    legendgroup=f"model {index}",
                    showlegend=False,
                )
            )
        figure.add_trace(
            go.Scatter(
                x=[100 * relocation.evidence],
                y=[relocation.original],
                mode="markers",
                marker={
                    **style.marker(index, 0.8),
                    "symbol": "x",
                    "line": {"color": style.colors.ink, "width": 1},
                },
                hovertemplate="%{y:.4f} unchanged",
                name=legend_name(name, style),
                legendgroup=f"model {index}",
                showlegend=False,
            )
        )
    first = next(iter(results.values()), None)
    if first is not None and place is not None and place < len(first.positions):
        figure.add_vline(
            100 * float(first.positions[place]),
            line={"color": style.colors.muted, "width": 1, "dash": "dot"},
            layer="below",
        )
    return with_legend(positions(figure), style)


def causes_over_curve(
    curve: ArrayLike,
    curve_name: str,
    moved: Relocation | None,
    removed: Ablation | None,
    style: Style,
    evidence: tuple[float, float] | None = None,
    provenance: Provenances = (),
) -> go.Figure:
    """A method's curve with the measured effects of interventions: `moved`, the score by position
    of the evidence where it is read in full, minus its mean, and `removed`, the decrease of the
    score without each part.

    `curve` [100] covers the whole text, with NaN where nothing was read. Positions are counted in
    characters, because moving text changes its tokens. Each series is divided by its largest
    magnitude, because their units differ; hovering shows the values.
    """
    figure = canvas(
        "causes_over_curve", style, TEXT_TITLE, "Value (largest magnitude = 1)", provenance
    )
    values = np.asarray(curve, dtype=np.float64)
    finite = np.isfinite(values)
    values = values[finite]
    color = str(style.line(0)["color"])
    figure.add_trace(
        go.Scatter(
            x=CENTERS[finite],
            y=_scaled(values),
            customdata=values,
            mode="lines",
            fill="tozeroy",
            fillcolor=faint(color, 0.15),
            line={"color": color, "width": 1},
            hovertemplate="%{customdata:.4g}",
            name=legend_name(curve_name, style),
        )
    )
    if removed is not None:
        # Together the parts are the text that was read.
        ends = np.array([0, *(end for _, end in removed.spans)])
        edges = 100 * removed.read_share * ends / ends[-1]
        figure.add_trace(
            go.Bar(
                x=(edges[1:] + edges[:-1]) / 2,
                y=_scaled(removed.effects),
                width=0.85 * np.diff(edges),
                customdata=removed.effects,
                hovertemplate="%{customdata:+.4f}",
                marker={"color": faint(str(style.line(1)["color"]), 0.55), "line": {"width": 0}},
                name=legend_name(f"score lost by ablation ({removed.by})", style),
            )
        )
    if moved is not None:
        figure.add_trace(
            go.Scatter(
                x=100 * moved.positions[moved.whole],
                y=_scaled(moved.changes),
                customdata=moved.scores[moved.whole],
                mode="lines+markers",
                line=style.line(2),
                marker={"size": 0.55 * style.font_size},
                hovertemplate="%{customdata:.4f}",
                name=legend_name("score by evidence position", style),
            )
        )
    if evidence is not None:
        shade(figure, evidence, style.colors.evidence, "evidence", style)
    figure.add_hline(0, line={"color": style.colors.muted, "width": 1})
    figure.update_yaxes(range=[-1.08, 1.08])
    return with_legend(positions(figure), style, above=evidence is not None)


def displacements(
    results: Mapping[str, Displacement], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """The score by the number of tokens by which the whole text was moved, with a line for each
    label; points are hollow if the text was not read in full."""
    figure = canvas("displacements", style, "Text moved by (tokens)", "Score", provenance)
    for index, (name, displacement) in enumerate(results.items()):
        trace = go.Scatter(
            x=list(displacement.tokens),
            y=displacement.scores,
            mode="lines+markers",
            line=style.line(index),
            marker={
                **style.marker(index, 0.6),
                "symbol": [
                    style.symbol(index) + ("" if r >= 1 else "-open") for r in displacement.read
                ],
            },
            customdata=100 * displacement.read,
            hovertemplate="%{y:.4f}, %{customdata:.0f}% of the text read",
            name=legend_name(name, style),
        )
        figure.add_trace(group(trace, f"model {index}", name))
    return with_legend(figure, style)


def minus_null_curves(
    curves: Sequence[tuple[str, ControlledCurve]], method: Method, style: Style
) -> go.Figure:
    """Curves minus their controls, each with the 95% band of the mean difference. The axis title
    names the controls."""
    names = " or ".join(dict.fromkeys(CONTROLS[controlled.control] for _, controlled in curves))
    title = f"{quantity(method)} minus control ({names})"
    figure = canvas("minus_null", style, POSITION_TITLE, title)
    for index, (_, controlled) in enumerate(curves):
        if controlled.ci_low is None or controlled.ci_high is None:
            continue  # too few documents for a band
        color = faint(str(style.line(index)["color"]), 0.2)
        ends, at = (controlled.ci_low, controlled.ci_high), np.concatenate([BINS, BINS[::-1]])
        figure.add_trace(
            band(CENTERS, *ends, color, f"curve {index}", style.edge(index), customdata=at)
        )
    for index, (name, controlled) in enumerate(curves):
        mean = controlled.mean.astype(np.float64)
        figure.add_trace(line(index, mean, style, legend_name(name, style), panel=name))
    figure.add_hline(0, line={"color": style.colors.muted, "width": 1})
    return with_legend(positions(figure), style)


def causal_curves(
    causes: Sequence[DataSetCause], style: Style, *, named: bool = False
) -> go.Figure:
    """Mean causal curves of one intervention over a data set with 95% intervals, a line for each
    model. The unit depends on the intervention: score, decrease of the score, or cosine.
    If `named`, the y axis also names the intervention."""
    curves = [cause.summary.curve for cause in causes]
    name = curves[0].method.name
    title = QUANTITIES.get(name, COSINE)
    if named:
        title = f"{name.capitalize()}: {uncapitalized(title)}"
    provenance = [cause.provenance() for cause in causes]
    return mean_curves(curves, style, y_title=title, provenance=provenance)


def _scaled(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    limit = np.abs(array).max(initial=0.0)
    return array / limit if limit else array
