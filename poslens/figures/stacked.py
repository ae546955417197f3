"""Figures of quantities with different units below each other in one figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from poslens.figures.palettes import Style

_REFERENCE = re.compile(r"([xy])(?:axis)?(\d*)")


def stacked(figures: Sequence[go.Figure], style: Style) -> go.Figure:
    """Figures of the same width below each other in one figure, each with its own axes, under one
    legend. Its provenance is that of all of them."""
    if len(figures) == 1:
        return figures[0]
    layouts = [figure.layout.to_plotly_json() for figure in figures]
    bodies = [layout["height"] - layout["margin"]["t"] for layout in layouts]
    top, bottom = layouts[0]["margin"]["t"], layouts[-1]["margin"]["b"]
    # Above each plot but the first: room for the titles of panels, if it has any.
    gaps = [
        layout["margin"]["t"] if layout.get("annotations") else style.font_size
        for layout in layouts[1:]
    ]
    inner = sum(bodies) + sum(gaps) - bottom
    height = inner + top + bottom
    joined = {**layouts[0], "annotations": [], "shapes": [], "height": height}
    joined["margin"] = {**layouts[0]["margin"], "t": top, "b": bottom}
    entries: list[Any] = []
    traces: list[dict[str, Any]] = []
    above = n_axes = 0
    named: set[str] = set()
    for figure, layout, body, gap in zip(figures, layouts, bodies, [*gaps, 0], strict=True):
        high = 1 - above / inner
        low = 1 - (above + body - layout["margin"]["b"]) / inner
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
        for trace in figure.data:
            drawn = trace.to_plotly_json()
            for side in "xy":
                drawn[f"{side}axis"] = _shifted(drawn.get(f"{side}axis", side), n_axes)
            if trace.name in named:
                drawn["showlegend"] = False
            traces.append(drawn)
        named |= {
            trace.name for trace in figure.data if trace.name and trace.showlegend is not False
        }
        entries += [each for each in layout["meta"]["provenance"] if each not in entries]
        above += body + gap
        n_axes += max(int(re.sub(r"\D", "", name) or 1) for name in names)
    joined["showlegend"] = bool(named)
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
