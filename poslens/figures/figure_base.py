"""Parts shared by figures: an empty styled figure, a curve's axis and line, labels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.methods import METHODS
from poslens.attribution.types import N_BINS, Method
from poslens.figures.captions import Provenances, caption_text, provenance_entries
from poslens.figures.legends import group, with_legend
from poslens.figures.palettes import TITLE_EM, Style, escape, text_width, wrap

__all__ = ["group", "with_legend"]

UNKNOWN_SYMBOL = "circle-open-dot"
"""Symbol of a point if it is unknown how much the model read; filled and hollow symbols mean read
and not read."""

Span = tuple[float, float]

POSITION_TITLE = "Relative position in the tokens read (%)"
READ_TITLE = "Position in the text read (% of characters)"
TEXT_TITLE = "Position in the text (% of characters)"
BINS = np.arange(N_BINS)
CLEAR = "rgba(0,0,0,0)"
_LEGEND_EM = 17  # longer names are wrapped, so that they fit on a phone
CENTERS = (BINS + 0.5) * (100 / N_BINS)
_TICKS = 9
"""Maximum number of ticks of a y axis. Steps are 1, 2 or 5 times a power of ten, which gives at
least three ticks; by default Plotly gives a low figure only two."""
_TICK_CHARACTERS = 12
_EVERY = 20
"""One in this many points of a curve shows its symbol."""


def quantity(method: Method) -> str:
    """Axis title for a method's numbers, with their unit."""
    entry = METHODS.get(method.name)
    name = entry.axis if entry else method.name.replace("_", " ").capitalize()
    unit = {"p99": "1 = document's 99th percentile", "max": "1 = document's maximum"}.get(
        str({**method.params, **method.curve_params}.get("normalization")),
        entry.unit if entry else "score units",
    )
    return f"{name} ({unit})"


def faint(color: str, opacity: float) -> str:
    """`#RRGGBB` as an rgba() color with this opacity."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def band(
    x: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    color: str,
    key: str | None = None,
    edge: Mapping[str, object] = MappingProxyType({"width": 0}),
    **more: Any,
) -> go.Scatter:
    """The area between two curves [n] at `x` [n], in the legend group `key`, with the outline
    `edge` (`Style.edge`). `more` are properties of the trace."""
    at, below, above = (np.asarray(values) for values in (x, low, high))
    return go.Scatter(
        x=np.concatenate([at, at[::-1]]),
        y=np.concatenate([above, below[::-1]]),
        mode="lines",
        fill="toself",
        fillcolor=color,
        line=dict(edge),
        hoverinfo="skip",
        legendgroup=key,
        showlegend=False,
        **more,
    )


def intervals(values: Sequence[Estimate | None], color: str) -> dict[str, Any]:
    """Error bars of the 95% intervals that exist, as a trace's `error_y`."""
    ends = [(v.value, v.low, v.high) if v else (0.0, None, None) for v in values]
    return {
        # Otherwise a dash would be drawn at each point.
        "visible": any(low is not None or high is not None for _, low, high in ends),
        "type": "data",
        "symmetric": False,
        "array": [0 if high is None else high - value for value, _, high in ends],
        "arrayminus": [0 if low is None else value - low for value, low, _ in ends],
        "thickness": 1,
        "width": 2,
        "color": color,
    }


WHOLE_UNIT: dict[str, Any] = {"range": [0, 1.03]}
"""Properties of an axis from 0 to 1, with space for a marker at 1: Plotly's own range is 0 to 2 if
all values are 1."""
WITHIN_UNIT: dict[str, Any] = {"autorangeoptions": {"clipmin": -0.03, "clipmax": 1.03}}
"""Properties of an axis that covers its values only, but nothing below 0 or above 1."""


def near_unit(figure: go.Figure) -> dict[str, Any]:
    """Properties of an axis of the figure's values, which are in [0, 1]: from the tenth below the
    lowest to the tenth above the highest, so that small differences are visible, but at least 0.2
    wide, so that noise is not magnified."""
    values = [value for trace in figure.data for value in trace.y if value is not None]
    low, high = math.floor(10 * min(values)), math.ceil(10 * max(values))
    low = max(0, min(low, high - 2))
    high = max(high, low + 2)
    return {"range": [low / 10, 1.03 if high == 10 else high / 10]}


def same_range(figures: Sequence[go.Figure]) -> None:
    """Give the y axes of figures side by side one range, if all of them have a fixed one, so that
    the figures can be compared."""
    ranges = [figure.layout.yaxis.range for figure in figures]
    if ranges and all(ranges):
        lows, highs = zip(*ranges, strict=True)
        for figure in figures:
            figure.update_yaxes(range=[min(lows), max(highs)])


_PATTERNS = ("", "/", ".", "x")


def bar_pattern(index: int, style: Style) -> dict[str, Any]:
    """Hatching that distinguishes a model's bars without color; for a marker's `pattern`."""
    return {
        "shape": _PATTERNS[index % len(_PATTERNS)],
        "fillmode": "overlay",
        "fgcolor": style.colors.paper,
        "size": 6,
        "solidity": 0.25,
    }


def labeled_bars(index: int, style: Style) -> dict[str, Any]:
    """Properties of the `index`-th model's bars, which have `text` above them and `hovertext`."""
    color = str(style.line(index)["color"])
    return {
        "textposition": "outside",
        "textfont": {"size": style.small, "color": style.colors.muted},
        "cliponaxis": False,
        "marker": {
            "color": faint(color, 0.85),
            "line": {"color": color, "width": 1},
            "pattern": bar_pattern(index, style),
        },
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def color_bar(title: str, style: Style) -> dict[str, Any]:
    """The color bar of a heatmap, for its `colorbar`; the caller adds the positions of ticks, which
    have no lines: next to a number, a line looks like a minus sign."""
    return {
        "title": {"text": title, "side": "right", "font": {"size": style.font_size}},
        "thickness": 0.8 * style.font_size,
        "outlinewidth": 0,
        "ticks": "",
        "xpad": 6,
    }


def tick_label(label: str) -> str:
    """The label of a category, escaped and in lines that fit next to each other on a phone."""
    lines = textwrap.wrap(label, _TICK_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(map(escape, lines))


def legend_name(name: str, style: Style) -> str:
    """A name from data, escaped and wrapped for a legend."""
    room = min(style.width_px - 6 * style.font_size, _LEGEND_EM * style.font_size)
    return "<br>".join(map(escape, wrap(name, room, style.small)))


def canvas(
    kind: str,
    style: Style,
    x_title: str,
    y_title: str,
    provenance: Provenances = (),
    *,
    top: bool = False,
) -> go.Figure:
    """An empty figure of a `kind` in `style`, with axes and, if given, its provenance.

    With `top` the x axis is above the plot, and only a line of labels and the caption are below it.
    Titles may come from data: they are wrapped and escaped here.
    """
    theme, size, small = style.colors, style.font_size, style.small
    x_lines = wrap(x_title, min(style.width_px - 8 * size, TITLE_EM * size), size)
    y_lines = wrap(y_title, style.height_px - 6 * size, size)
    # The height of ticks, their labels and the title, between the plot and the caption.
    foot = 1.8 * size if top else (2.4 + 1.3 * len(x_lines)) * size
    axis: dict[str, Any] = {
        "showline": True,
        "linecolor": theme.ink,
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": theme.ink,
        "tickfont": {"size": small},
        "gridcolor": theme.grid,
        "gridwidth": 1,
        "zerolinecolor": theme.grid,
        "zerolinewidth": 1,
    }

    def title(lines: Sequence[str], standoff: float) -> dict[str, Any]:
        text = "<br>".join(map(escape, lines))
        return {"text": text, "standoff": standoff * size, "font": {"size": size}}

    # Set in the constructor: changing an existing layout takes seven times as long.
    layout = go.Layout(
        template="none",
        width=style.width_px,
        height=style.height_px,
        font={"family": style.font_family, "size": size, "color": theme.ink},
        paper_bgcolor=theme.paper,
        plot_bgcolor=theme.paper,
        margin={"l": size, "r": 1.5 * size, "t": size, "b": foot, "pad": 0},
        hoverlabel={
            "namelength": -1,
            "bgcolor": theme.paper,
            "bordercolor": theme.muted,
            "font": {"color": theme.ink, "family": style.font_family, "size": small},
        },
        # Otherwise Plotly uses the paper color, which is transparent on a page: gray on gray.
        modebar={"bgcolor": theme.paper, "color": theme.muted, "activecolor": theme.ink},
        clickmode="event+select",
        meta={"figure": kind, "provenance": []},
        xaxis={
            **axis,
            "title": title(x_lines, 0.6),
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            **axis,
            "title": title(y_lines, 0.7),
            "automargin": True,
            "nticks": _TICKS,
        },
    )
    return captioned(go.Figure(layout=layout), provenance, style)


def captioned(figure: go.Figure, provenance: Provenances, style: Style) -> go.Figure:
    """The same figure with its provenance, unless it has one, and with a caption below the plot if
    the style has one."""
    entries, layout = provenance_entries(provenance), figure.layout
    if layout.meta["provenance"] or not entries:
        return figure
    layout.meta = {**layout.meta, "provenance": entries}
    if style.caption:
        font_px, foot = 0.9 * style.small, layout.margin.b
        lines = wrap(caption_text(entries), style.width_px - 7 * style.font_size, font_px)
        below = 1.3 * font_px * len(lines) + 0.8 * style.font_size
        figure.update_layout(height=layout.height + round(below), margin={"b": foot + below})
        figure.add_annotation(
            text="<br>".join(map(escape, lines)),
            font={"size": font_px, "color": style.colors.muted},
            align="left",
            showarrow=False,
            xref="paper",
            yref="paper",
            x=0,
            y=0,
            xanchor="left",
            yanchor="top",
            yshift=-foot,
        )
    return figure


def label(
    figure: go.Figure, x: float, text: str, style: Style, *, y: float = 1, yanchor: str = "bottom"
) -> None:
    """Add a label outside the plot, at `x` on the x axis."""
    figure.add_annotation(
        text=text,
        font={"size": style.small, "color": style.colors.muted},
        showarrow=False,
        xref="x",
        yref="paper",
        x=x,
        y=y,
        xanchor="center",
        yanchor=yanchor,
    )


def shade(
    figure: go.Figure, span: tuple[float, float], color: str, text: str, style: Style
) -> None:
    """Shade a span of the document, given as shares in [0, 1], and write `text` above it."""
    start, end = span
    figure.add_vrect(
        x0=100 * start, x1=100 * end, fillcolor=color, line={"width": 0}, layer="below"
    )
    if not text:
        return
    # Half the label's width from the edge, so that it is not clipped at 0 and 100%.
    reach = 50 * text_width(text, style.font_size) / (style.width_px - 6 * style.font_size)
    label(figure, min(max(50 * (start + end), reach), 100 - reach), text, style)


def positions(figure: go.Figure) -> go.Figure:
    """The same figure with the x axis of a curve, relative position in percent, and one hover box
    for all lines."""
    figure.update_xaxes(
        range=[0, 100],
        tickvals=list(range(0, 101, 20)),
        unifiedhovertitle={"text": "%{x:.1f}%"},
    )
    return figure.update_layout(hovermode="x unified")


def bins(values: ArrayLike) -> NDArray[np.float64]:
    """`values` as an array [100].

    Raises:
        ValueError: another shape.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (N_BINS,):
        raise ValueError(f"a curve of shape {array.shape}, expected ({N_BINS},)")
    return array


def line(
    index: int,
    values: NDArray[np.float64],
    style: Style,
    name: str,
    x: NDArray[np.float64] | None = None,
    *,
    panel: str = "",
    role: str = "",
) -> go.Scatter:
    """The `index`-th line: values [100] at positions `x` [100] in [0, 1], or at bin centers.

    `name` is markup and must be escaped; `panel` and `role`, which are plain text, are those of
    `group`.
    """
    trace = go.Scatter(
        x=CENTERS if x is None else 100 * x,
        y=values,
        customdata=BINS,
        # plotly.js cannot select points of a trace without markers.
        mode="lines+markers",
        line=style.line(index),
        **marks(index, len(values), style),
        hovertemplate="%{y:.4g}",
        name=name,
    )
    return group(trace, f"curve {index}", panel or name, role)


def marks(index: int, n: int, style: Style) -> dict[str, Any]:
    """Markers of the `index`-th line, which has `n` points, as trace properties. A few show the
    line's symbol, which distinguishes lines without color; the rest are transparent and only
    receive clicks."""
    color = style.line(index)["color"]
    # The first point always has the symbol, because the legend shows that point's.
    shown = [at == 0 or at % _EVERY == (7 * index + 9) % _EVERY for at in range(n)]
    return {
        "marker": {
            "color": [color if visible else CLEAR for visible in shown],
            "size": 0.55 * style.font_size,
            "symbol": style.symbol(index),
        },
        "selected": {"marker": {"color": color}},
        "unselected": {"marker": {"color": CLEAR}},
    }
