"""In-degrees, sorted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from poslens.figures.figure_base import Provenances, canvas, group, legend_name, with_legend
from poslens.figures.palettes import Style, escape
from poslens.studies.hubs.summary import HubSummary

POINTS = 400
"""Points of a line, at most: a corpus may have a million documents."""


def sorted_in_degrees(
    summaries: Sequence[HubSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """In-degree of the documents, largest first: a line for each model, and a thin one for the
    index with the words of each document in random order."""
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
            # The first documents are the hubs, so points are denser there.
            at = np.unique((np.linspace(0, 1, POINTS) ** 2 * (len(order) - 1)).astype(np.int64))
            name = f"{hub_summary.name}, {role}" if role else hub_summary.name
            trace = go.Scatter(
                x=(100 * (at + 0.5) / len(order)).tolist(),
                y=degrees.counts[order[at]].tolist(),
                mode="lines",
                name=legend_name(name, style),
                line={**look, "width": 0.6 * style.line_width, "dash": "dot"} if role else look,
                customdata=[[escape(hub_summary.ids[document])] for document in order[at]],
                hovertemplate="%{customdata[0]}: %{y:,}",
            )
            figure.add_trace(group(trace, key, hub_summary.name, role))
    figure.update_xaxes(range=[0, 100], ticksuffix="%")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="closest")
    return with_legend(figure, style)
