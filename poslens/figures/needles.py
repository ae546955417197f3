"""The needle grid: accuracy by length and depth."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from poslens.attribution.evaluation.needle import NeedleGrid
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import canvas, colour_bar
from poslens.figures.palettes import Style, escape


def needle_heatmap(
    grids: Mapping[str, NeedleGrid], style: Style, *, provenance: Provenances = ()
) -> go.Figure:
    """A heatmap of the share of needles retrieved, with a row for each model and length and a
    column for each depth.

    `grids` are by model. Lengths past a model's context limit have no row; cells that have not been
    computed are empty."""
    depths = sorted({depth for grid in grids.values() for depth in grid.depths})
    rows = [(name, length) for name, grid in grids.items() for length in grid.lengths]
    estimates = [[grids[name].accuracy(length, depth) for depth in depths] for name, length in rows]
    figure = canvas(
        "needle_grid",
        style,
        "Depth of the needle in the text (%)",
        "Text length (tokens)",
        provenance,
    )
    labels = [f"{name} · {length:,}" for name, length in rows]
    scale = [(2 * at - 1, colour) for at, colour in style.diverging() if at >= 0.5]
    figure.add_trace(
        go.Heatmap(
            x=list(range(len(depths))),
            y=list(range(len(rows))),
            z=[[None if value is None else value.value for value in row] for row in estimates],
            zmin=0,
            zmax=1,
            colorscale=[list(stop) for stop in scale],
            xgap=1,
            ygap=1,
            hoverongaps=False,
            text=[
                ["" if value is None else f"{value.value:.2f}" for value in row]
                for row in estimates
            ],
            texttemplate="%{text}",
            textfont={"size": style.small},
            customdata=[
                [
                    "" if value is None else f"{escape(label)} tokens, depth {depth:g}%: {value}"
                    for depth, value in zip(depths, row, strict=True)
                ]
                for label, row in zip(labels, estimates, strict=True)
            ],
            hovertemplate="%{customdata}<extra></extra>",
            colorbar={
                **colour_bar("Share retrieved", style),
                "tickvals": [0, 0.25, 0.5, 0.75, 1],
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
    # Room for the numbers with any number of models.
    rows_px = len(rows) * 2.2 * style.font_size + 8 * style.font_size
    figure.update_layout(hovermode="closest", height=max(figure.layout.height, round(rows_px)))
    return figure
