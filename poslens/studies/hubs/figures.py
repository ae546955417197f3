"""The figure of sorted in-degrees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from poslens.figures.captions import Provenances
from poslens.figures.figure_base import canvas, group, legend_name, with_legend
from poslens.figures.palettes import Style, escape
from poslens.studies.hubs.summary import HubSummary

POINTS = 400
"""Maximum number of points of a line, because a corpus may have a million documents."""


def sorted_in_degrees(
    summaries: Sequence[HubSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """The in-degrees of documents in descending order: a line for each model, and a dotted one for
    the control, in which each document's words are in random order."""
    top = summaries[0].asked.top if summaries else 0
    y_title = f"In-degree (queries with it in the top {top:,})"
    x_title = "Documents, largest in-degree first (%)"
    figure = canvas("hubs", style, x_title, y_title, provenance)
    for number, hub_summary in enumerate(summaries):
        look, key = style.line(number), f"model {number}"
        for role, degrees in (
            ("", hub_summary.original),
            ("random word order", hub_summary.control),
        ):
            order = np.argsort(-degrees.counts, kind="stable")
            # Denser at the beginning, where the hubs are.
            drawn = np.unique((np.linspace(0, 1, POINTS) ** 2 * (len(order) - 1)).astype(np.int64))
            name = f"{hub_summary.name}, {role}" if role else hub_summary.name
            trace = go.Scatter(
                x=(100 * (drawn + 0.5) / len(order)).tolist(),
                y=degrees.counts[order[drawn]].tolist(),
                mode="lines",
                name=legend_name(name, style),
                line={**look, "width": 0.6 * style.line_width, "dash": "dot"} if role else look,
                customdata=[[escape(hub_summary.ids[document])] for document in order[drawn]],
                hovertemplate="%{customdata[0]}: %{y:,}",
            )
            figure.add_trace(group(trace, key, hub_summary.name, role))
    figure.update_xaxes(range=[0, 100], ticksuffix="%")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="closest")
    return with_legend(figure, style)
