"""Legends for a few lines, and small multiples for many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from poslens.figures.palettes import TITLE_EM, Style, escape, text_width, wrap

MAX_LINES = 4
"""Maximum number of lines in one plot, because the bands of more hide each other."""

_COLUMNS = 2  # so that they fit on a phone
_SYMBOL_PX = 16  # plotly.js's largest symbol of a legend
_NAME_EM = 13  # longer panel names are wrapped for the same reason


def group(trace: go.Scatter, key: str, name: str, role: str = "") -> go.Scatter:
    """Mark `trace` as part of the group `key`, which gets its own panel if there are many lines,
    and return it.

    `name`, for example a model, becomes the panel's title and must not be escaped yet. `role`
    distinguishes the lines of one panel.
    """
    return trace.update(legendgroup=key, meta={"panel": name, "role": role})


def with_legend(figure: go.Figure, style: Style, *, above: bool = False) -> go.Figure:
    """`figure` with a legend above the plot, aligned left; `above` leaves a line for labels between
    them. More than `MAX_LINES` lines of several groups become small multiples, one panel per group.
    Call this after adding all traces, axes, shapes and labels."""
    lines = [trace for trace in figure.data if trace.meta and trace.showlegend is not False]
    names = {trace.legendgroup: str(trace.meta["panel"]) for trace in lines}
    roles = any(trace.meta["role"] for trace in lines)
    many = len(lines) > MAX_LINES and len(names) > 1
    if many:
        figure = _panels(figure, names, style)
    legend_px = legend_height(figure, style)
    # Panel titles already take space in the top margin.
    between = legend_px if many else (1 if above else -0.4) * style.font_size
    return figure.update_layout(
        showlegend=bool(_entries(figure)),
        # The third and later rows of the legend increase the height.
        height=figure.layout.height + max(0, legend_px - 4 * style.font_size),
        legend={
            "orientation": "h",
            # Each group gets a column, for lines that have something in common.
            "traceorder": "normal" if many or not roles else "grouped",
            "x": 0,
            "xanchor": "left",
            # Anchored to the top of the figure: anchored to the plot, it would not move when a
            # change of width changes its number of rows, and would cover the plot.
            "yref": "container",
            "y": 1,
            "yanchor": "top",
            "itemwidth": 30,
            "tracegroupgap": 0,
            "font": {"size": style.small},
            "bgcolor": "rgba(0,0,0,0)",
            # An invisible border that keeps labels away from the last row: plotly.js makes the top
            # margin as high as the legend and the axes need, so a larger margin adds nothing.
            "bordercolor": "rgba(0,0,0,0)",
            "borderwidth": 0.4 * style.font_size if above else 0,
        },
        margin={"t": figure.layout.margin.t + between},
    )


def _entries(figure: go.Figure) -> list[str]:
    return [str(t.name) for t in figure.data if t.name and t.showlegend is not False]


def legend_height(figure: go.Figure, style: Style) -> int:
    """Approximate height of the legend in px, if its entries take one row or columns as wide as the
    widest entry."""
    entries = _entries(figure)
    lines = [entry.split("<br>") for entry in entries]
    widths = [40 + max(text_width(line, style.small) for line in entry) for entry in lines]
    room = style.width_px - 2.5 * style.font_size
    if not widths:
        return 0
    columns = len(widths) if sum(widths) <= room else max(1, int(room // max(widths)))
    rows = [lines[at : at + columns] for at in range(0, len(lines), columns)]
    # A row is at least as high as a symbol.
    return round(sum(max(max(map(len, row)) * 1.3 * style.small, _SYMBOL_PX) + 5 for row in rows))


def _panels(figure: go.Figure, names: dict[str, str], style: Style) -> go.Figure:
    """`figure` as small multiples with shared axes and axis titles: one panel for each of `names`
    (group -> title). Traces without a group are repeated in each panel; those of a group that are
    not marked by `group` keep their legend entries."""
    size, layout = style.font_size, figure.layout.to_plotly_json()
    n, rows = len(names), math.ceil(len(names) / _COLUMNS)
    between = 4.5 * size / style.width_px
    share = (1 - (_COLUMNS - 1) * between) / _COLUMNS
    room = min(share * style.width_px - 3 * size, _NAME_EM * size)
    titles = [wrap(name, room, style.small) for name in names.values()]
    title_px = 1.3 * style.small * max(map(len, titles)) + 0.3 * size
    panel_px = 0.4 * style.height_px
    # If the last row is not full, the gap above it has the x axis labels of another column.
    gap_px = title_px + (2 if n % _COLUMNS else 1.3) * size
    plot_px = rows * panel_px + (rows - 1) * gap_px
    title_room = min(style.width_px - 3 * size, TITLE_EM * size)
    y_lines = wrap(_title(layout["yaxis"]), title_room, size)

    # Plain dictionaries until the end, because Plotly validates a figure at each change.
    traces: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    notes = [note for note in layout.get("annotations", []) if note["xref"] == "paper"]
    for at, lines in enumerate(titles):
        row, column = divmod(at, _COLUMNS)
        left = column * (share + between)
        top = 1 - row * (panel_px + gap_px) / plot_px
        number = str(at + 1) if at else ""
        last = at + _COLUMNS >= n
        axes[f"xaxis{number}"] = {
            **_untitled(layout["xaxis"]),
            "domain": [left, left + share],
            "anchor": f"y{number}",
            "showticklabels": last,
            # plotly.js computes no range for matching y axes if x axes with the same range match
            # too.
            **({"matches": "x"} if at and "range" not in layout["xaxis"] else {}),
        }
        axes[f"yaxis{number}"] = {
            **_untitled(layout["yaxis"]),
            "domain": [max(0, top - panel_px / plot_px), top],
            "anchor": f"x{number}",
            "showticklabels": not column,
            **({"matches": "y"} if at else {}),
        }
        if "yaxis2" in layout:
            axes[f"yaxis{n + at + 1}"] = {
                **_untitled(layout["yaxis2"]),
                "overlaying": f"y{number}",
                "anchor": f"x{number}",
                "showticklabels": column == _COLUMNS - 1 or at == n - 1,
            }
        notes.append(
            _note(
                [escape(line) for line in lines],
                left,
                top,
                style.small,
                style.colors.ink,
                yshift=2,
                yanchor="bottom",
            )
        )
        notes += [
            {**note, "xref": f"x{number}", "yref": f"y{number} domain", "y": 1, "yanchor": "top"}
            for note in layout.get("annotations", [])
            if note["xref"] != "paper" and not at
        ]
        for shape in layout.get("shapes", []):
            refs = {
                f"{side}ref": shape[f"{side}ref"].replace(side, f"{side}{number}", 1)
                for side in "xy"
            }
            shapes.append({**shape, **refs})
    keys = list(names)
    drawn = [trace.to_plotly_json() for trace in figure.data]
    for trace in drawn:
        key = trace.get("legendgroup")
        titled = key in names and bool(trace.get("meta"))  # the panel's title names it
        places = [keys.index(key)] if key in names else list(range(n))
        for at in places:
            second = trace.get("yaxis") == "y2"
            traces.append(
                {
                    **trace,
                    "xaxis": f"x{at + 1}" if at else "x",
                    "yaxis": f"y{n + at + 1}" if second else f"y{at + 1}" if at else "y",
                    **({"showlegend": False} if titled or at != places[0] else {}),
                }
            )
    by_role: dict[str, dict[str, Any]] = {}
    for trace in drawn:
        if trace.get("meta"):
            by_role.setdefault(trace["meta"]["role"], trace)
    for role, trace in by_role.items():
        if role:
            line = {**trace.get("line", {}), "color": style.colors.ink}
            look = {"line": line, "opacity": trace.get("opacity"), "hoverinfo": "skip"}
            entry = {"type": "scatter", "x": [None], "y": [None], "mode": "lines"}
            traces.append({**entry, "name": escape(role), **look})
    foot = (2.2 if layout["xaxis"].get("showticklabels", True) else 0.6) * size
    x_lines = wrap(_title(layout["xaxis"]), title_room, size)
    notes.append(
        _note(x_lines, 0.5, 0, size, style.colors.ink, yshift=-foot, yanchor="top", at="center")
    )
    head = title_px + 0.2 * size
    notes.append(_note(y_lines, 0, 1, size, style.colors.ink, yshift=head, yanchor="bottom"))
    head += 1.3 * size * len(y_lines)
    margin = layout["margin"]
    for key in ("xaxis", "yaxis", "yaxis2", "annotations", "shapes", "height"):
        layout.pop(key, None)
    return go.Figure(
        traces,
        {
            **layout,
            **axes,
            "annotations": notes,
            "shapes": shapes,
            "margin": {**margin, "t": head + 0.6 * size},
            "height": round(plot_px + head + margin["b"] + 2.5 * size),
        },
    )


def _title(axis: dict[str, Any]) -> str:
    """An axis's title on one line, as markup."""
    return str(axis.get("title", {}).get("text") or "").replace("<br>", " ")


def _untitled(axis: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in axis.items() if key != "title"}


def _note(
    lines: Sequence[str],
    x: float,
    y: float,
    size: float,
    color: str,
    at: str = "left",
    **where: Any,
) -> dict[str, Any]:
    """An annotation outside the panels; `x` and `y` are shares of the area of all panels."""
    return {
        "text": "<br>".join(lines),
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": at,
        "align": at,
        "showarrow": False,
        "font": {"size": size, "color": color},
        **where,
    }
