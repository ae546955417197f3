"""The figures of the study `preferences`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from poslens.attribution.evaluation.preferences import STRENGTHS
from poslens.attribution.methods import METHODS
from poslens.figures.figure_base import Provenances, canvas, group, legend_name, with_legend
from poslens.figures.palettes import Style
from poslens.studies.faithfulness.figures import gains

if TYPE_CHECKING:
    from poslens.studies.preferences.study import PreferenceSummary


def order_blind_indices(
    summaries: Sequence[PreferenceSummary], style: Style, provenance: Provenances
) -> go.Figure:
    """Each method's index on the order-blind encoder with its interval; 0 is expected."""
    preferences = [summary.preference for summary in summaries]
    rows = [
        (METHODS[preference.method.name].title, preference.order_blind)
        for preference in preferences
    ]
    return gains(rows, "Index without position embeddings", style, provenance)


def index_by_strength(
    summaries: Sequence[PreferenceSummary], style: Style, provenance: Provenances
) -> go.Figure:
    """Each method's index against the strength of the planted bias."""
    title = "Strength (-1 primacy, 1 recency)"
    figure = canvas("preferences", style, title, "Primacy-recency index", provenance)
    figure.add_hline(0, line={"color": style.colours.muted, "width": 1, "dash": "dot"})
    for number, summary in enumerate(summaries):
        planted, look = summary.preference.planted, style.line(number)
        if planted is None:
            continue
        name = METHODS[summary.preference.method.name].title
        trace = go.Scatter(
            x=STRENGTHS,
            y=[index.value for index in planted.indices],
            mode="lines+markers",
            name=legend_name(name, style),
            line=look,
            marker=style.marker(number, 0.6),
            customdata=[[index.text("+.3f")] for index in planted.indices],
            hovertemplate="%{customdata[0]}",
        )
        figure.add_trace(group(trace, f"method {number}", name))
    figure.update_xaxes(tickvals=list(STRENGTHS), unifiedhovertitle={"text": "strength %{x}"})
    figure.update_layout(hovermode="x unified")
    return with_legend(figure, style)
