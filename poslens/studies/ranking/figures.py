"""Figures of rankings by the evidence's position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.positions import BUCKET_EDGES, LENGTH_BUCKETS
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.evidence_profile import N_EVIDENCE_BINS
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.figures.figure_base import (
    UNKNOWN_SYMBOL,
    WHOLE_UNIT,
    bar_pattern,
    canvas,
    faint,
    group,
    intervals,
    legend_name,
    positions,
    with_legend,
)
from poslens.figures.palettes import Style, escape
from poslens.studies.ranking.benchmarks import EvidencePositions, evidence_rows
from poslens.studies.ranking.service import Measured

_CENTERS = (np.arange(N_EVIDENCE_BINS) + 0.5) * 100 / N_EVIDENCE_BINS
_FOOT = 0.2
EVIDENCE_TITLE = "Midpoint of the evidence (% of characters)"
NOTHING_TO_DRAW = (
    "There is nothing to draw, because no evidence is marked in these documents: choose a data set "
    "with evidence spans."
)


def evidence_bins(summaries: Sequence[Measured], style: Style) -> go.Figure:
    """nDCG@10 over 20 bins of the evidence's position, one line per model; faint bars at the
    bottom count the bins' queries. Bins without a query leave a gap. A point is filled in
    proportion to how much of its bin's evidence the model read: hollow for none, a ring with a
    dot if unknown.

    Raises:
        UserError: the data set does not say where its evidence is.
    """
    profiles = {
        measured.name: measured.evaluation.profile
        for measured in summaries
        if measured.evaluation.profile is not None
    }
    if not profiles:
        raise UserError(NOTHING_TO_DRAW)
    figure = canvas("evidence_bins", style, EVIDENCE_TITLE, "nDCG@10")
    counts = np.array(next(iter(profiles.values())).counts)
    figure.add_trace(
        go.Bar(
            # On the same axis, because a second axis would change the ticks of the first.
            x=_CENTERS,
            y=_FOOT * counts / counts.max(),
            width=100 / N_EVIDENCE_BINS,
            name=f"queries (highest bar: {counts.max():,})",
            customdata=counts,
            hovertemplate="%{customdata}",
            marker={
                "color": faint(style.colors.muted, 0.18),
                "line": {"color": style.colors.paper, "width": 1},
            },
        )
    )
    for index, (model, profile) in enumerate(profiles.items()):
        line = style.line(index)
        trace = go.Scatter(
            x=_CENTERS,
            y=profile.means,
            mode="lines+markers",
            connectgaps=False,
            name=legend_name(model, style),
            line=line,
            marker={
                "color": [faint(str(line["color"]), 1.0 if r is None else r) for r in profile.read],
                "size": 0.5 * style.font_size,
                "symbol": [
                    UNKNOWN_SYMBOL if r is None else style.symbol(index) for r in profile.read
                ],
                "line": {"color": line["color"], "width": 1},
            },
            customdata=[
                ", context limit unknown" if r is None else f", {r:.0%} of the evidence read"
                for r in profile.read
            ],
            hovertemplate="%{y:.3f}%{customdata}",
        )
        figure.add_trace(group(trace, f"model {index}", model))
    positions(figure)
    figure.update_yaxes(**WHOLE_UNIT)
    return with_legend(figure, style)


def evidence_positions(
    summaries: Sequence[Measured | EvidencePositions], style: Style
) -> go.Figure:
    """Number of queries in each of 20 bins of the evidence's position, stacked by length bucket if
    the data set gives lengths. Pages with rankings omit it.

    Raises:
        UserError: the data set does not say where its evidence is, or is ranked.
    """
    if isinstance(summaries[0], Measured):
        raise UserError(
            "Rankings don't show how many queries there are at each position: run "
            "`poslens rank --table evidence --figure FILE`."
        )
    rows = evidence_rows(summaries[0].collection)
    figure = canvas("evidence_positions", style, EVIDENCE_TITLE, "Queries")
    lengths = list(dict.fromkeys(row.length for row in rows))
    for index, length in enumerate(lengths[1:] or lengths):
        of_length = [row for row in rows if row.length == length]
        color = str(style.line(index)["color"])
        figure.add_trace(
            go.Bar(
                x=[100 * row.position for row in of_length],
                y=[row.queries for row in of_length],
                width=100 / N_EVIDENCE_BINS,
                name=str(length),
                marker={
                    "color": faint(color, 0.85),
                    "line": {"color": style.colors.paper, "width": 1},
                    "pattern": bar_pattern(index, style),
                },
            )
        )
    positions(figure)
    figure.update_layout(barmode="stack")
    return with_legend(figure, style)


def position_groups(summaries: Sequence[Measured], style: Style) -> go.Figure:
    """nDCG@10 of each group of queries, one line per model, with 95% intervals.

    Raises:
        UserError: the data set has no groups of queries.
    """
    grouped_rankings = {
        measured.name: measured.by_group for measured in summaries if measured.by_group is not None
    }
    if not grouped_rankings:
        raise UserError("This data set has no groups of queries to draw: choose another table.")
    groups = next(iter(grouped_rankings.values())).groups
    figure = canvas("position_groups", style, f"Queries by {groups.by}", "nDCG@10")
    width = min(0.08, 0.5 / len(grouped_rankings))
    for index, (model, grouped_ranking) in enumerate(grouped_rankings.items()):
        line = style.line(index)
        values = [measured.measures.get(NDCG) for measured in grouped_ranking.measures]
        trace = go.Scatter(
            # Offset horizontally, so that intervals do not hide each other.
            x=[at + width * (index - (len(grouped_rankings) - 1) / 2) for at in range(len(values))],
            y=[None if v is None else v.value for v in values],
            mode="lines+markers",
            name=legend_name(model, style),
            line=line,
            marker=style.marker(index, 0.6),
            error_y=intervals(values, faint(str(line["color"]), 0.6)),
            customdata=[
                [escape(measured.name), f"{value}", measured.n]
                for measured, value in zip(grouped_ranking.measures, values, strict=True)
            ],
            hovertemplate="%{customdata[0]}: %{customdata[1]}, %{customdata[2]:,} queries",
        )
        figure.add_trace(group(trace, f"model {index}", model))
    figure.update_xaxes(
        tickvals=list(range(len(groups.names))),
        ticktext=[escape(name) for name in groups.names],
        range=[-0.5, len(groups.names) - 0.5],
    )
    figure.update_yaxes(**WHOLE_UNIT)
    return with_legend(figure.update_layout(hovermode="closest"), style)


def length_buckets(summaries: Sequence[Measured], style: Style) -> go.Figure:
    """nDCG@10 in each length bucket, one bar per model.

    Raises:
        UserError: the data set has no evidence or no lengths.
    """
    buckets = {measured.name: measured.evaluation.buckets for measured in summaries}
    if not any(buckets.values()):
        raise UserError(NOTHING_TO_DRAW)
    figure = canvas("length_buckets", style, "Document length (tokens)", "nDCG@10")
    ends = [f"≤ {edge:,}" for edge in BUCKET_EDGES] + [f"> {BUCKET_EDGES[-1]:,}"]
    labels = {
        bucket: f"{bucket}<br>{escape(end)}"
        for bucket, end in zip(LENGTH_BUCKETS, ends, strict=True)
    }
    buckets_present = [
        b for b in LENGTH_BUCKETS if any(b in profiles for profiles in buckets.values())
    ]
    for index, (model, profiles) in enumerate(buckets.items()):
        shown = [profiles.get(bucket) for bucket in buckets_present]
        figure.add_trace(
            go.Bar(
                x=buckets_present,
                y=[None if profile is None else profile.mean for profile in shown],
                name=legend_name(model, style),
                marker={
                    "color": style.line(index)["color"],
                    "pattern": bar_pattern(index, style),
                },
                customdata=[0 if profile is None else profile.n for profile in shown],
                hovertemplate="%{y:.3f}, %{customdata} queries",
            )
        )
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(
        tickvals=buckets_present,
        ticktext=[labels[bucket] for bucket in buckets_present],
        automargin=True,
    )
    figure.update_yaxes(**WHOLE_UNIT)
    return with_legend(figure, style)
