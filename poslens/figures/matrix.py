"""Figures of matrices: rows of bars for query units, the query x document matrix, and accuracy
by length and depth of needles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.interactions import Interactions
from poslens.attribution.evaluation.needle import NeedleGrid
from poslens.attribution.nouns import number_text
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import POSITION_TITLE, Span, canvas, color_bar, label, shade
from poslens.figures.palettes import MAX_HEIGHT_PX, Style, escape, shorten

_ROW_SHARE = 0.85  # length of the longest bar, as a share of the distance between two rows
_ROW_PX = 26
_ROW_LABELS = {
    "showline": False,
    "showgrid": False,
    "zeroline": False,
    "ticks": "",
    "ticklabelstandoff": 3,
}
"""Properties of a y axis whose labels name rows."""


def _tall(style: Style, rows: int, besides_px: int, least_px: int = 0) -> Style:
    """`style` with a height for this many rows plus `besides_px`, at least `least_px`. For hundreds
    of rows the height is limited and rows become narrower."""
    height = max(besides_px + _ROW_PX * rows, least_px)
    return replace(style, height_px=min(height, MAX_HEIGHT_PX))


def unit_rails(
    units: Interactions, evidence: Span | None, style: Style, *, provenance: Provenances = ()
) -> go.Figure:
    """One row of bars for each query unit: its contributions along the document, up if they raise
    the score and down if they lower it. All rows have the same scale; the height fits them.

    Args:
        units: the columns are bins of equal length over the text that was read.
        evidence: start and end of the evidence as shares in [0, 1] of that text; shaded.

    The customdata of a bar is its contribution.
    """
    values = np.asarray(units.matrix, dtype=np.float64)
    rows, n = values.shape
    style = _tall(style, rows, 90)
    bound = float(np.abs(values).max(initial=0)) or 1.0
    figure = canvas("unit_rails", style, POSITION_TITLE, "", provenance)
    colors = {True: str(style.diverging()[-2][1]), False: str(style.diverging()[1][1])}
    centers = (np.arange(n) + 0.5) * (100 / n)
    # Added in one call, because each call validates all lines again.
    across = {"type": "line", "xref": "x domain", "yref": "y", "x0": 0, "x1": 1, "layer": "below"}
    line = {"color": style.colors.grid, "width": 1}
    figure.update_layout(shapes=[{**across, "y0": -y, "y1": -y, "line": line} for y in range(rows)])
    figure.add_trace(
        go.Bar(
            x=np.tile(centers, rows),
            y=(values / bound * _ROW_SHARE).ravel(),
            base=np.repeat(-np.arange(rows), n),
            width=100 / n,
            marker={
                "color": [colors[bool(value >= 0)] for value in values.ravel()],
                "line": {"width": 0},
            },
            customdata=values.ravel(),
            hovertext=[escape(text) for text in units.rows for _ in range(n)],
            hovertemplate="%{hovertext}, %{x:.0f}%: %{customdata:+.4g}<extra></extra>",
            showlegend=False,
        )
    )
    if evidence is not None:
        shade(figure, evidence, style.colors.evidence, "evidence", style)
        figure.update_layout(margin={"t": 2 * style.font_size})
    figure.update_xaxes(range=[0, 100], tickvals=list(range(0, 101, 20)))
    labeled = _labeled(rows, style)
    figure.update_yaxes(
        range=[0.4 - rows, 1],
        tickvals=[-row for row in labeled],
        ticktext=[escape(shorten(units.rows[row], 16)) for row in labeled],
        **_ROW_LABELS,
    )
    return figure.update_layout(hovermode="closest", bargap=0)


def interaction_matrix(
    units: Interactions,
    style: Style,
    *,
    x_title: str = "Document tokens",
    provenance: Provenances = (),
) -> go.Figure:
    """Query units (rows, top to bottom) by document units (columns), white at zero, with the
    evidence outlined; the height fits the rows.

    Colors encode the square root of the magnitude, because most contributions are small and would
    look white next to the largest. The color bar and hover text show the contributions themselves,
    in score units. Columns are labeled if all labels fit, otherwise numbered; hovering shows each
    label.
    """
    values = np.asarray(units.matrix, dtype=np.float64)
    rows, columns = units.rows, units.columns
    style = _tall(style, len(rows), 160, 260)
    bound = float(np.abs(values).max(initial=0)) or 1.0
    figure = canvas("interaction_matrix", style, x_title, "", provenance, top=True)
    steps = np.linspace(-1, 1, 5)
    figure.add_trace(
        go.Heatmap(
            x=np.arange(1, len(columns) + 1),
            z=signed_root(values / bound),
            zmin=-1,
            zmax=1,
            customdata=values,
            colorscale=[list(stop) for stop in style.diverging()],
            text=[[f"{escape(row)} × {escape(column)}" for column in columns] for row in rows],
            hovertemplate="%{text}<br>%{customdata:.4g}<extra></extra>",
            colorbar={
                **color_bar("Contribution (score units)", style),
                "tickvals": steps.tolist(),
                "ticktext": [f"{bound * step * abs(step):.2g}" for step in steps],
            },
        )
    )
    for start, end in _runs(units.evidence_columns):
        figure.add_shape(
            type="rect",
            x0=start + 0.5,
            x1=end + 1.5,
            y0=-0.5,
            y1=len(rows) - 0.5,
            line={"color": style.colors.ink, "width": 1.5},
        )
        label(figure, (start + end) / 2 + 1, "evidence", style, y=0, yanchor="top")
    room = style.width_px - 14 * style.font_size
    if len(columns) * 1.2 * style.font_size <= room:
        figure.update_xaxes(
            tickvals=list(range(1, len(columns) + 1)),
            ticktext=[escape(shorten(text, 16)) for text in columns],
            tickangle=-90 if len(columns) > 1 else 0,
        )
    figure.update_xaxes(
        # Labels are at the top, where the margin can grow with them; the caption is at the bottom.
        side="top",
        automargin=True,
        showline=False,
        ticks="",
        ticklabelstandoff=3,
    )
    labeled = _labeled(len(rows), style)
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(labeled),
        ticktext=[escape(shorten(rows[row], 16)) for row in labeled],
        **_ROW_LABELS,
    )
    figure.update_layout(hovermode="closest")
    return figure


def _labeled(rows: int, style: Style) -> range:
    """The rows that get labels: all of them, or as many as fit without overlap."""
    room = max(style.height_px - 6 * style.font_size, style.font_size)
    return range(0, rows, max(1, ceil(rows * 1.2 * style.font_size / room)))


def signed_root(values: ArrayLike) -> NDArray[np.float64]:
    """The square root of the magnitude, with the value's sign."""
    array = np.asarray(values, dtype=np.float64)
    return np.sign(array) * np.sqrt(np.abs(array))


def _runs(columns: Sequence[int]) -> list[tuple[int, int]]:
    """First and last index of each run of adjacent columns."""
    runs: list[tuple[int, int]] = []
    for column in sorted(set(columns)):
        if runs and column == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], column)
        else:
            runs.append((column, column))
    return runs


# -- needles ---------------------------------------------------------------------------------------


def needle_heatmap(
    grids: Mapping[str, NeedleGrid], units: Mapping[str, str], style: Style
) -> go.Figure:
    """A heatmap of the percentage of needles retrieved, with a row for each model and length and a
    column for each depth.

    `grids`, and the `units` of their lengths, are by model. Lengths past a model's context limit
    have no row; cells that have not been computed are empty."""
    depths = sorted({depth for grid in grids.values() for depth in grid.depths})
    rows = [(name, length) for name, grid in grids.items() for length in grid.lengths]
    estimates = [[grids[name].accuracy(length, depth) for depth in depths] for name, length in rows]
    titles = [f"{name} · {length:,} {units[name]}" for name, length in rows]
    labels, length_title = titles, "Text length"
    if len(shared := {units[name] for name in grids}) == 1:
        labels = [f"{name} · {length:,}" for name, length in rows]
        length_title = f"Text length ({shared.pop()})"
    figure = canvas("needle_grid", style, "Depth of the needle in the text (%)", length_title)
    scale = [(2 * at - 1, color) for at, color in style.diverging() if at >= 0.5]
    figure.add_trace(
        go.Heatmap(
            x=list(range(len(depths))),
            y=list(range(len(rows))),
            z=[
                [None if value is None else 100 * value.value for value in row] for row in estimates
            ],
            zmin=0,
            zmax=100,
            colorscale=[list(stop) for stop in scale],
            xgap=1,
            ygap=1,
            hoverongaps=False,
            text=[
                ["" if value is None else number_text(100 * value.value, ".0f") for value in row]
                for row in estimates
            ],
            texttemplate="%{text}",
            textfont={"size": style.small},
            customdata=[
                [
                    ""
                    if value is None
                    else f"{escape(title)}, depth {depth:g}%: {value.text('.1%')}"
                    for depth, value in zip(depths, row, strict=True)
                ]
                for title, row in zip(titles, estimates, strict=True)
            ],
            hovertemplate="%{customdata}<extra></extra>",
            colorbar={
                **color_bar("Retrieved (%)", style),
                "tickvals": [0, 25, 50, 75, 100],
            },
        )
    )
    figure.update_xaxes(
        tickvals=list(range(len(depths))), ticktext=[f"{depth:g}" for depth in depths], ticks=""
    )
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(rows))),
        ticktext=[escape(label) for label in labels],
        showgrid=False,
        zeroline=False,
        ticks="",
        ticklabelstandoff=3,
    )
    # Rows stay high enough for their numbers, however many models there are.
    rows_px = len(rows) * 2.2 * style.font_size + 8 * style.font_size
    figure.update_layout(hovermode="closest", height=max(figure.layout.height, round(rows_px)))
    return figure
