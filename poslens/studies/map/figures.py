"""The figure of a map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from poslens.figures.captions import Provenances
from poslens.figures.figure_base import canvas, with_legend
from poslens.figures.palettes import Style, escape, shorten

MANY = 2000
"""Number of points above which pages draw with WebGL, because panning SVG becomes slow."""

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star")
OTHERS = "others"


def point_map(
    points: ArrayLike,
    colours: Sequence[str] | ArrayLike,
    labels: Sequence[str],
    colour_title: str,
    style: Style,
    *,
    diverging: bool = False,
    webgl: bool = False,
    provenance: Provenances = (),
) -> go.Figure:
    """Points [n, 2] colored by words (the most frequent ones have a color and a symbol each) or by
    numbers [n], with gray for NaN. `diverging` centers the scale at zero. The customdata of a point
    is its index.

    With `webgl` all points are small discs, because other symbols and outlines halve the frame rate
    (bench.map) and cannot be recognized at 3 pixels.

    Raises:
        ValueError: the numbers of points, colors and labels differ.
    """
    xy = np.asarray(points, dtype=np.float64)
    n = len(labels)
    if xy.shape != (n, 2) or len(colours) != n:  # type: ignore[arg-type]
        raise ValueError(f"points {xy.shape}, {len(colours)} colours, {n} labels")  # type: ignore[arg-type]
    figure = canvas("map", style, "", "", provenance)
    figure.update_xaxes(showticklabels=False, ticks="", showline=False, zeroline=False)
    figure.update_yaxes(
        showticklabels=False, ticks="", showline=False, zeroline=False, showgrid=False
    )
    kind = go.Scattergl if webgl else go.Scatter
    size = 0.7 * style.font_size if n < MANY else 4
    if webgl:
        size = 3

    def add(chosen: np.ndarray, name: str, marker: Mapping[str, object], legend: bool) -> None:
        figure.add_trace(
            kind(
                x=xy[chosen, 0],
                y=xy[chosen, 1],
                mode="markers",
                name=escape(shorten(name, 40)),
                customdata=chosen,
                hovertext=[escape(shorten(labels[i], 120)) for i in chosen],
                hovertemplate="%{hovertext}<extra></extra>",
                marker={"size": size, "opacity": 0.8, **marker},
                showlegend=legend,
            )
        )

    grey: dict[str, object] = {"color": style.colours.muted}
    if not webgl:
        grey["symbol"] = "circle-open"
    if n and isinstance(colours[0], str):  # type: ignore[index]
        words = [str(word) for word in colours]  # type: ignore[union-attr]
        counts = Counter(words)
        room = len(SYMBOLS)
        shown = [word for word, _ in counts.most_common(room if len(counts) <= room else room - 1)]
        for index, word in enumerate(shown):
            chosen = np.array([i for i, own in enumerate(words) if own == word])
            marker = {"color": style.line(index)["color"]}
            if not webgl:
                marker["symbol"] = SYMBOLS[index]
            add(chosen, word or "not known", marker, True)
        rest = np.array([i for i, own in enumerate(words) if own not in shown], dtype=int)
        if len(rest):
            add(rest, OTHERS, grey, True)
        return with_legend(figure.update_layout(hovermode="closest"), style)
    values = np.asarray(colours, dtype=np.float64)
    finite = np.flatnonzero(np.isfinite(values))
    unknown = np.flatnonzero(~np.isfinite(values))
    if len(unknown):
        add(unknown, "not known", grey, False)
    if len(finite):
        largest = float(np.abs(values[finite]).max()) or 1.0
        ends = (
            (-largest, largest)
            if diverging
            else (float(values[finite].min()), float(values[finite].max()))
        )
        marker = {
            "color": values[finite],
            "colorscale": [list(stop) for stop in style.diverging()] if diverging else "Cividis",
            "cmin": ends[0],
            "cmax": ends[1],
            "line": {"color": style.colours.muted, "width": 0 if webgl else 0.4},
            "colorbar": {
                "title": {"text": escape(colour_title), "side": "right"},
                "thickness": style.font_size,
                "outlinewidth": 0,
                "tickfont": {"size": style.small},
            },
        }
        add(finite, colour_title, marker, False)
    return figure.update_layout(hovermode="closest")
