"""The map of a data set, drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from poslens.figures.figure_base import Provenances, canvas, with_legend
from poslens.figures.palettes import Style, escape, shorten

MANY = 2000
"""Points from which on the screen draws with WebGL: SVG pans a few thousand at best."""

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
    """Points [n, 2] coloured by words (the commonest get a colour and a symbol each) or by numbers
    [n], NaN being grey; `diverging` centres the scale on zero. customdata is the point's index.

    With `webgl` all points are small discs: other symbols and outlines are textures and second
    passes there, which halve the frames per second (bench.map), and tell nothing at 3 pixels.
    """
    where = np.asarray(points, dtype=np.float64)
    n = len(labels)
    if where.shape != (n, 2) or len(colours) != n:  # type: ignore[arg-type]
        raise ValueError(f"points {where.shape}, {len(colours)} colours, {n} labels")  # type: ignore[arg-type]
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
                x=where[chosen, 0],
                y=where[chosen, 1],
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
    array = np.flatnonzero(np.isfinite(values))
    unknown = np.flatnonzero(~np.isfinite(values))
    if len(unknown):
        add(unknown, "not known", grey, False)
    if len(array):
        largest = float(np.abs(values[array]).max()) or 1.0
        ends = (
            (-largest, largest)
            if diverging
            else (float(values[array].min()), float(values[array].max()))
        )
        marker = {
            "color": values[array],
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
        add(array, colour_title, marker, False)
    return figure.update_layout(hovermode="closest")
