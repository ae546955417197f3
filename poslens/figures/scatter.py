"""Scatter of words by their values for two models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from poslens.figures.captions import Provenances
from poslens.figures.figure_base import canvas
from poslens.figures.palettes import Style, escape, shorten, text_width

_LABELED = 12
"""Maximum number of points of a scatter that are labeled with their words."""


def rank_scatter(
    x: ArrayLike,
    y: ArrayLike,
    labels: Sequence[str],
    names: tuple[str, str],
    style: Style,
    *,
    y_title: str = "Saliency",
    provenance: Provenances = (),
) -> go.Figure:
    """Words [n] by their values for two models: `x` for the model names[0], `y` for names[1].

    Each axis has its own range, because models differ in their units. The outermost points are
    labeled with their words unless labels would overlap; hovering shows every word. The customdata
    of a point is the word's index.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    figure = canvas(
        "rank_scatter", style, f"{y_title}, {names[0]}", f"{y_title}, {names[1]}", provenance
    )
    ranges = [_range(xs), _range(ys)]
    shown = _labeled(xs, ys, ranges, labels, style)
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            customdata=np.arange(len(labels)),
            mode="markers+text",
            text=[escape(shorten(word, 24)) if i in shown else "" for i, word in enumerate(labels)],
            textposition="top center",
            textfont={"size": 0.85 * style.font_size, "color": style.colors.ink},
            hovertext=[escape(word) for word in labels],
            hovertemplate="%{hovertext}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
            marker={
                "color": style.line(0)["color"],
                "size": 0.5 * style.font_size,
                "opacity": 0.7,
                "line": {"color": style.colors.paper, "width": 0.5},
            },
            cliponaxis=False,
            showlegend=False,
        )
    )
    figure.update_xaxes(range=ranges[0], showgrid=True)
    figure.update_yaxes(range=ranges[1])
    figure.update_layout(hovermode="closest")
    return figure


def _range(values: NDArray[np.float64]) -> list[float]:
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    if not values.size:
        low, high = 0.0, 1.0
    pad = 0.06 * (high - low) or 0.5
    return [low - pad, high + pad]


def _labeled(
    xs: NDArray[np.float64],
    ys: NDArray[np.float64],
    ranges: Sequence[Sequence[float]],
    labels: Sequence[str],
    style: Style,
) -> set[int]:
    """Indices of the outermost points whose labels do not overlap (approximately, in px)."""
    across = (xs - ranges[0][0]) / (ranges[0][1] - ranges[0][0])
    up = (ys - ranges[1][0]) / (ranges[1][1] - ranges[1][0])
    width, height = style.width_px - 7 * style.font_size, style.height_px - 5 * style.font_size
    boxes: dict[int, tuple[float, float, float]] = {}
    order: list[int] = np.argsort(-np.maximum(across, up), kind="stable").tolist()
    for index in order:
        if len(boxes) == _LABELED:
            break
        half = text_width(shorten(labels[index], 24), 0.85 * style.font_size) / 2
        x, y = float(across[index]) * width, float(up[index]) * height
        if half <= x <= width - half + style.font_size and all(
            abs(x - other_x) > half + other_half or abs(y - other_y) > 1.2 * style.font_size
            for other_x, other_y, other_half in boxes.values()
        ):
            boxes[index] = (x, y, half)
    return set(boxes)
