"""The figure of unretrieved sentences by size of the index."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from poslens.attribution.evaluation.chunk_plan import IndexSetting, Tried
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import (
    canvas,
    faint,
    group,
    intervals,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.studies.chunks.summary import ChunkSummary

_KINDS = {
    "whole documents": "square",
    "windows": "circle",
    "windows with the title": "diamond",
    "late chunks": "triangle-up",
}


def kind_of(setting: IndexSetting) -> str:
    """The kind of a setting, as named in the legend."""
    names = {"whole": "whole documents", "late": "late chunks", "windows": "windows"}
    return "windows with the title" if setting.titled else names[setting.chunks.kind]


def shares_by_size(
    summaries: Sequence[ChunkSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """The percentage of unretrieved sentences of held-out documents by vectors per document, with a
    marker for each setting. Bars are 95% intervals. A ring marks the setting to use."""
    top = summaries[0].asked.top if summaries else 0
    figure = canvas(
        "chunks", style, "Vectors per document", f"Unretrieved sentences (top {top}), %", provenance
    )
    for number, summary in enumerate(summaries):
        if summary.choice is None:
            continue
        color, unit = str(style.line(number)["color"]), summary.asked.unit
        shares = [
            (tried, share.times(100))
            for tried in summary.tried
            if (share := summary.share(tried, "unretrieved")) is not None
        ]
        for kind, symbol in _KINDS.items():
            shown = [(tried, share) for tried, share in shares if kind_of(tried.setting) == kind]
            if not shown:
                continue
            name = f"{summary.name}, {kind}"
            trace = go.Scatter(
                x=[_size(tried) for tried, _ in shown],
                y=[share.value for _, share in shown],
                mode="markers",
                cliponaxis=False,
                name=legend_name(name, style),
                marker={"color": color, "symbol": symbol, "size": 0.7 * style.font_size},
                error_y=intervals([share for _, share in shown], faint(color, 0.5)),
                customdata=[
                    [escape(tried.setting.title(unit)), str(share)] for tried, share in shown
                ],
                hovertemplate="%{customdata[0]}<br>%{x:.1f} vectors per document, "
                "%{customdata[1]}%<extra></extra>",
            )
            figure.add_trace(group(trace, f"{number} {kind}", name))
        for tried, share in shares:
            if tried is not summary.plan:
                continue
            ring = {"symbol": "circle-open", "size": 1.6 * style.font_size, "line": {"width": 2}}
            figure.add_trace(
                go.Scatter(
                    x=[_size(tried)],
                    y=[share.value],
                    mode="markers",
                    cliponaxis=False,
                    name=legend_name(f"{summary.name}, setting to use", style),
                    marker={**ring, "color": style.colours.ink},
                    hoverinfo="skip",
                )
            )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    return with_legend(figure, style)


def _size(tried: Tried) -> float:
    return tried.n_vectors / max(1, len(tried.documents))
