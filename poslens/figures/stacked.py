"""Figures of quantities with different units below each other in one figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from poslens.figures.legends import legend_height
from poslens.figures.palettes import Style

_REFERENCE = re.compile(r"([xy])(?:axis)?(\d*)")


def stacked(figures: Sequence[go.Figure], style: Style) -> go.Figure:
    """Figures of the same width below each other in one figure, each with its own axes, legend and
    caption. Its provenance is that of all of them."""
    if len(figures) == 1:
        return figures[0]
    layouts = [figure.layout.to_plotly_json() for figure in figures]
    height = sum(layout["height"] for layout in layouts)
    # plotly.js makes room for the legend of a whole figure only.
    heads = [
        max(layout["margin"]["t"], legend_height(figure, style) + 0.8 * style.font_size)
        for figure, layout in zip(figures, layouts, strict=True)
    ]
    top, bottom = heads[0], layouts[-1]["margin"]["b"]
    inner = height - top - bottom
    joined = {**layouts[0], "annotations": [], "shapes": [], "height": height}
    joined["margin"] = {**layouts[0]["margin"], "t": top, "b": bottom}
    entries: list[Any] = []
    traces: list[dict[str, Any]] = []
    above = n_axes = 0
    for number, (figure, layout) in enumerate(zip(figures, layouts, strict=True)):
        high = 1 - (above + heads[number] - top) / inner
        low = 1 - (above + layout["height"] - layout["margin"]["b"] - top) / inner
        names = [name for name in layout if re.match(r"[xy]axis\d*$", name)]
        for name in names:
            axis, side = dict(layout[name]), name[0]
            axis["anchor"] = _shifted(axis.get("anchor", "y" if side == "x" else "x"), n_axes)
            if side == "y":
                axis["domain"] = [low + (high - low) * end for end in axis.get("domain", (0, 1))]
            axis |= {
                key: _shifted(axis[key], n_axes) for key in ("matches", "overlaying") if key in axis
            }
            joined[_shifted(name, n_axes)] = axis
        for kind, heights in (("annotations", ("y",)), ("shapes", ("y0", "y1"))):
            for item in layout.get(kind, ()):
                joined[kind].append(_moved(item, n_axes, heights, low, high))
        legend = f"legend{number + 1 if number else ''}"
        joined[legend] = dict(layout["legend"])
        if number:  # relative to the figure, plotly.js would keep all plots out of its height
            joined[legend] |= {"yref": "paper", "y": 1 - (above - top) / inner}
        for trace in figure.data:
            drawn = trace.to_plotly_json()
            axes = {
                f"{side}axis": _shifted(drawn.get(f"{side}axis", side), n_axes) for side in "xy"
            }
            traces.append({**drawn, **axes, "legend": legend})
        entries += [each for each in layout["meta"]["provenance"] if each not in entries]
        above += layout["height"]
        n_axes += max(int(re.sub(r"\D", "", name) or 1) for name in names)
    joined["meta"] = {**layouts[0]["meta"], "provenance": entries}
    return go.Figure(traces, joined)


def _shifted(reference: str, by: int) -> str:
    """An axis, as named in a layout or by a trace, whose number is higher by `by`."""

    def renamed(match: re.Match[str]) -> str:
        number = int(match[2] or 1) + by
        return f"{match[0].removesuffix(match[2])}{number if number > 1 else ''}"

    return _REFERENCE.sub(renamed, reference, count=1)


def _moved(
    item: Mapping[str, Any], by: int, heights: Sequence[str], low: float, high: float
) -> dict[str, Any]:
    """An annotation or shape of a figure whose plot is from `low` to `high`."""
    moved = dict(item)
    for side in ("xref", "yref"):
        if item[side] != "paper":
            moved[side] = _shifted(item[side], by)
    if item["yref"] == "paper":
        moved |= {key: low + (high - low) * item[key] for key in heights}
    return moved
