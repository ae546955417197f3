"""Plotly figures of curves. They compute nothing but their layout.

Strings from data (model names, tokens, labels) are escaped. `layout.meta` of each figure has its
kind as `figure` and its provenance as `provenance`, a list of dicts. Streamlit must show figures
with `theme=None`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.positions import BANDS
from poslens.attribution.curves.positions import band as band_of
from poslens.attribution.methods import POSIR_CURVE, make_method
from poslens.attribution.types import Array, PositionCurve
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import (
    BINS,
    CENTERS,
    CLEAR,
    POSITION_TITLE,
    READ_TITLE,
    TEXT_TITLE,
    Span,
    band,
    bins,
    canvas,
    faint,
    legend_name,
    line,
    positions,
    quantity,
    shade,
    with_legend,
)
from poslens.figures.palettes import Style, escape

MEAN, MEAN_SO_FAR = "mean of the data set", "mean of the pairs so far"


def pair_curves(
    curves: Mapping[str, ArrayLike],
    evidence: Mapping[str, Span],
    style: Style,
    y_title: str,
    read: Mapping[str, float] = MappingProxyType({}),
    *,
    means: Mapping[str, Mean] = MappingProxyType({}),
    published: Mapping[str, Mean] = MappingProxyType({}),
    x: NDArray[np.float64] | None = None,
    provenance: Provenances = (),
) -> go.Figure:
    """One document's curves, one per model, over the tokens that the model read, with the models'
    mean curves over a data set.

    Args:
        curves: model -> [100] values; if empty, only the means are drawn.
        evidence: model -> start and end of the evidence as shares in [0, 1] of the tokens it read,
            which is shaded. It can differ between models that read different numbers of tokens.
        read: model -> share of the text that it read; shares below 1 are added to the legend.
        means: model -> its mean curve over the data set.
        published: model -> its published mean curve.
        x: positions of the curves' points [100], shares in [0, 1]; bin centers by default.
        y_title: the quantity and its unit.

    The customdata of each point is its bin 0..99.
    """
    figure = canvas("pair_curves", style, POSITION_TITLE, y_title, provenance)
    models = list(dict.fromkeys([*curves, *means]))
    # Bands are added first, so that they are drawn below the lines.
    for index, model in enumerate(models):
        mean = means.get(model)
        if mean is not None and mean.band is not None:
            _band(figure, mean.positions, *mean.band, index, style)
    for index, model in enumerate(models):
        share = read.get(model, 1.0)
        if model in curves:
            text = model if not means else f"{model}, this pair"
            if share < 1:
                text += f" (read {100 * share:.0f}% of the text)"
            trace = line(
                index,
                bins(curves[model]),
                style,
                legend_name(text, style),
                x=x,
                panel=model if means else text,
                role="this pair" if means else "",
            )
            if means:
                # The mean is the pair's reference, so it has the stronger line.
                trace.update(opacity=0.6, line={**style.line(index), "width": 1})
            figure.add_trace(trace)
        if model in means:
            mean = means[model]
            trace = line(
                index,
                bins(mean.values),
                style,
                legend_name(f"{model}, {mean.name}", style),
                x=mean.positions,
                panel=model,
                role=mean.name,
            )
            trace.update(line={**style.line(index), "width": 3})
            figure.add_trace(trace)
    _add_published(figure, published, len(models), style)
    for number, span in enumerate(dict.fromkeys(evidence.values())):
        shade(figure, span, style.colors.evidence, "" if number else "evidence", style)
    return with_legend(positions(figure), style, above=bool(evidence))


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean curve [100] at `positions` [100], the lower and upper bound [100] of its band if it
    has one, a note on what was averaged ("mean of 304 pairs"), and its name in a legend."""

    values: Array
    positions: NDArray[np.float64]
    band: tuple[Array, Array] | None
    note: str
    name: str = MEAN


def _add_published(
    figure: go.Figure, published: Mapping[str, Mean], first: int, style: Style
) -> None:
    """Add a line for each published curve; the first has the style of the `first`-th line."""
    for index, (model, mean) in enumerate(published.items(), first):
        name = f"{model}, published"
        shown, values = legend_name(name, style), bins(mean.values)
        figure.add_trace(line(index, values, style, shown, x=mean.positions, panel=name))


def _band(
    figure: go.Figure,
    at: NDArray[np.float64],
    low: ArrayLike,
    high: ArrayLike,
    index: int,
    style: Style,
    name: str = BANDS[0],
) -> None:
    """The area between two curves [100] where both have values, in the color of the `index`-th
    line."""
    finite = np.isfinite(np.asarray(low))
    x, below, above, numbers = (np.asarray(column)[finite] for column in (at, low, high, BINS))
    # Lighter with an outline, so that lines stand out from several bands on top of each other.
    edge = style.edge(index)
    color = faint(str(style.line(index)["color"]), 0.1 if edge["width"] else 0.2)
    more = {"customdata": np.concatenate([numbers, numbers[::-1]]), "name": name}
    figure.add_trace(band(100 * x, below, above, color, f"curve {index}", edge, **more))


def mean_curves(
    curves: Sequence[PositionCurve],
    style: Style,
    *,
    kind: str = BANDS[0],
    published: Mapping[str, Mean] = MappingProxyType({}),
    y_title: str | None = None,
    provenance: Provenances = (),
) -> go.Figure:
    """Mean curves over a data set, each with a band of `kind` (see `BANDS`), and `published`
    saliency means by model. Positions are in the tokens read, also of parts of a text; those of
    relocation, which moves characters, are in the characters read.

    Curves of the same model are distinguished by data set, then by method. Without `y_title`, the
    y axis is named after the curves' common method. The customdata of each point, also of bands,
    is its bin 0..99. Bands precede lines among the traces. The caption has the number of pairs.

    Curves over whole texts that were not all read to the end have a faint line with the share of
    pairs read at each position, on a second axis at the right.

    Raises:
        ValueError: some curves cover whole texts and others do not.
    """
    if len({curve.n_read is None for curve in curves}) > 1:
        raise ValueError("curves over whole texts and over what was read have no common axis")
    titles = {quantity(curve.method) for curve in curves}
    if published:
        titles.add(quantity(make_method("saliency", POSIR_CURVE)))
    if y_title is None:
        y_title = titles.pop() if len(titles) == 1 else "Attribution (unit of each method)"
    over_text = any(curve.n_read is not None for curve in curves)
    relocated = {curve.method.name for curve in curves} == {"relocation"} and not published
    title = TEXT_TITLE if over_text else READ_TITLE if relocated else POSITION_TITLE
    figure = canvas("mean_curves", style, title, y_title, provenance)
    for index, curve in enumerate(curves):
        edges = band_of(curve, kind)
        if edges is None:
            continue
        name = "95% interval" if kind == BANDS[0] else kind
        _band(figure, curve.positions, *edges, index, style, name)
    for index, mean in enumerate(published.values(), len(curves)):
        if mean.band is not None:
            _band(figure, mean.positions, *mean.band, index, style, BANDS[1])
    for index, (name, curve) in enumerate(zip(_curve_names(curves), curves, strict=True)):
        shown = legend_name(name, style)
        figure.add_trace(line(index, bins(curve.mean), style, shown, x=curve.positions, panel=name))
    _add_published(figure, published, len(curves), style)
    if any(curve.n_read is not None and curve.n_read.min() < curve.n for curve in curves):
        _add_read_shares(figure, curves, style)
    return with_legend(positions(figure), style)


def _add_read_shares(figure: go.Figure, curves: Sequence[PositionCurve], style: Style) -> None:
    """Add the percentage of texts read at each position, on an axis at the right."""
    for index, curve in enumerate(curves):
        if curve.n_read is None or curve.n_read.min() == curve.n:
            continue
        look = style.line(index)
        figure.add_trace(
            go.Scatter(
                x=100 * curve.positions,
                y=100 * curve.n_read / curve.n,
                yaxis="y2",
                mode="lines",
                line={"color": faint(str(look["color"]), 0.6), "dash": "dot", "width": 1},
                hovertemplate="read there: %{y:.0f}% of the pairs<extra></extra>",
                legendgroup=f"curve {index}",
                showlegend=False,
                name="read",
            )
        )
    figure.update_layout(
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "range": [0, 105],
            "tickvals": [0, 50, 100],
            "title": {
                "text": "Pairs read there (%), dotted",
                "standoff": 0.7 * style.font_size,
                "font": {"size": style.small, "color": style.colors.muted},
            },
            "tickfont": {"size": style.small, "color": style.colors.muted},
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        }
    )


def difference(
    a: ArrayLike,
    b: ArrayLike,
    names: tuple[str, str],
    style: Style,
    *,
    at: NDArray[np.float64] | None = None,
    interval: tuple[ArrayLike, ArrayLike] | None = None,
    y_title: str | None = None,
    provenance: Provenances = (),
) -> go.Figure:
    """Curve a minus curve b with a zero line, filled on each side in the color of that curve.

    Curves [100] cover the whole text, or are at the positions `at` [100] of the text that was read.
    `interval` has the lower and upper bound [100] of the difference, drawn as a band; without it
    the figure shows no significance. Positions at which either curve is NaN, because the model did
    not read that far, are shaded as not read.
    """
    title = "Difference" if y_title is None else f"Difference in {y_title[0].lower()}{y_title[1:]}"
    gap = bins(a) - bins(b)
    x = CENTERS if at is None else 100 * at
    finite = np.isfinite(gap)
    gap, x, drawn = gap[finite], x[finite], BINS[finite]
    title_x = TEXT_TITLE if at is None else POSITION_TITLE
    figure = canvas("difference", style, title_x, title, provenance)
    unread_from = 1.0 if finite.all() else float(finite.sum()) / len(finite)
    if unread_from < 1:
        shade(figure, (unread_from, 1.0), style.colors.unread, "not read by both", style)
    # The areas end where the line crosses 0, which can be between two points.
    before = np.flatnonzero(gap[:-1] * gap[1:] < 0)
    part = gap[before] / (gap[before] - gap[before + 1])
    crossings = x[before] + part * (x[before + 1] - x[before])
    filled_x, filled = np.insert(x, before + 1, crossings), np.insert(gap, before + 1, 0.0)
    for index, side in enumerate((np.maximum(filled, 0), np.minimum(filled, 0))):
        figure.add_trace(
            go.Scatter(
                x=filled_x,
                y=side,
                customdata=np.insert(drawn, before + 1, drawn[before]),
                mode="lines",
                fill="tozeroy",
                fillcolor=faint(str(style.line(index)["color"]), 0.35),
                line={"width": 0},
                hoverinfo="skip",
                name=legend_name(f"{names[index]} higher", style),
            )
        )
    if interval is not None and at is not None:
        _band(figure, at, *interval, 0, style)
        figure.data[-1].update(fillcolor=faint(style.colors.ink, 0.25))
    trace = line(0, gap, style, f"{escape(names[0])} − {escape(names[1])}", x=x / 100)
    trace.update(customdata=drawn)
    trace.update(showlegend=False, line={"color": style.colors.ink}, marker={"color": CLEAR})
    figure.add_trace(trace)
    figure.add_hline(0, line={"color": style.colors.muted, "width": 1})
    return with_legend(positions(figure), style, above=unread_from < 1)


def _curve_names(curves: Sequence[PositionCurve]) -> list[str]:
    """Distinct names of the curves: the model, with data set, method, its parameters or number
    where needed."""
    names = [curve.model for curve in curves]
    distinguishing = (
        lambda curve: curve.dataset,
        lambda curve: curve.method.name,
        lambda curve: repr(curve.method),
    )
    for more in distinguishing:
        groups: dict[str, set[str]] = {}
        for name, curve in zip(names, curves, strict=True):
            groups.setdefault(name, set()).add(more(curve))
        names = [
            f"{name}, {more(curve)}" if len(groups[name]) > 1 else name
            for name, curve in zip(names, curves, strict=True)
        ]
    return [
        f"{name} #{1 + names[:index].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
