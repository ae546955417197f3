"""The figures of the study `why`: causes of misses, and the ranks of one document after each
change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.why_causes import CAUSES, Why
from poslens.attribution.nouns import counted
from poslens.figures.figure_base import (
    canvas,
    faint,
    intervals,
    labeled_bars,
    legend_name,
    tick_label,
)
from poslens.figures.legends import with_legend
from poslens.figures.palettes import Style, escape
from poslens.studies.why.summary import CHANGES, NULLS, WhySummary, rank_words


def causes_chart(summaries: Sequence[WhySummary], style: Style) -> go.Figure:
    """A group of bars for each cause, with a bar for each model: the percentage of the model's
    misses with its 95% interval. The customdata of a bar is [model, cause].

    Raises:
        UserError: no model misses a document.
    """
    if not any(summary.misses for summary in summaries):
        raise UserError("No model misses a document, so there are no causes to draw.")
    figure = canvas("why_causes", style, "", "Share of misses (%)")
    for index, summary in enumerate(summaries):
        shares = [summary.share(cause) for cause in CAUSES]
        error = intervals(shares, style.colors.ink)
        for side in ("array", "arrayminus"):
            error[side] = [100 * value for value in error[side]]
        counts = [summary.count(cause) for cause in CAUSES]
        figure.add_trace(
            go.Bar(
                x=[cause.capitalize() for cause in CAUSES],
                y=[
                    100 * share.value if share else 0.0 if cause in summary.causes else None
                    for cause, share in zip(CAUSES, shares, strict=True)
                ],
                name=legend_name(f"{summary.name}, {counted(len(summary.misses), 'miss')}", style),
                customdata=[[summary.name, cause] for cause in CAUSES],
                text=[f"{n:,}" if n else "" for n in counts],
                **labeled_bars(index, style),
                error_y=error,
                hovertext=[
                    f"{escape(summary.name)}: {cause}, {counted(n, 'miss')}"
                    + (f", {share.text('.0%')}" if share else "")
                    for cause, n, share in zip(CAUSES, counts, shares, strict=True)
                ],
            )
        )
    figure.update_layout(barmode="group", bargap=0.25, hovermode="closest")
    figure.update_xaxes(ticks="", showline=False, autotickangles=[0, 45], automargin=True)
    figure.update_yaxes(showgrid=True, rangemode="tozero")
    return with_legend(figure, style)


def _label_sides(ranks: Mapping[str, int]) -> dict[str, str]:
    """Where the label of each model's rank is: above the marker of the best rank and below that of
    the worst, so that it is not next to another model's marker; at the side of the others."""
    order = sorted(ranks, key=ranks.__getitem__)
    sides = {name: ("middle left", "middle right")[at % 2] for at, name in enumerate(order)}
    return {**sides, order[-1]: "bottom center", order[0]: "top center"}


def ladder_chart(explanations: Mapping[str, Why], style: Style) -> go.Figure:
    """The ranks of one document with each model: unchanged and after each change (filled markers),
    and after each change's null control (open markers). The axis is logarithmic with rank 1 at the
    top; the dashed line is the top k. A document that is not found is drawn below the last rank."""
    figure = canvas("why_ladder", style, "", "Rank")
    last = max(explanation.n_documents for explanation in explanations.values())
    top = next(iter(explanations.values())).top

    def height(rank: int) -> float:
        return 1.3 * last if rank == NOT_FOUND else float(rank)

    labels = ["Unchanged"] + [
        words.capitalize()
        for cause, words in CHANGES.items()
        if any(cause in explanation.steps for explanation in explanations.values())
    ]
    steps_of: dict[str, list[tuple[str, int, int | None, str]]] = {}
    ranks: dict[str, dict[str, int]] = {label: {} for label in labels}
    for name, explanation in explanations.items():
        steps_of[name] = [(labels[0], explanation.rank, None, "")]
        for cause, words in CHANGES.items():
            if step := explanation.steps.get(cause):
                steps_of[name].append((words.capitalize(), step.rank, step.null, NULLS[cause]))
        for label, rank, *_ in steps_of[name]:
            ranks[label][name] = rank
    sides = {label: _label_sides(at_step) for label, at_step in ranks.items()}
    for index, (name, steps) in enumerate(steps_of.items()):
        color = str(style.line(index)["color"])
        marker = style.marker(index, 0.7, later=len(explanations) - 1 - index)
        figure.add_trace(
            go.Scatter(
                x=[label for label, *_ in steps],
                y=[height(rank) for _, rank, *_ in steps],
                mode="lines+markers+text",
                name=legend_name(name, style),
                text=[rank_words(rank) for _, rank, *_ in steps],
                textposition=[sides[label][name] for label, *_ in steps],
                textfont={"size": style.small, "color": style.colors.ink},
                cliponaxis=False,
                line={"color": faint(color, 0.45), "width": style.line_width},
                marker=marker,
                hovertext=[
                    f"{escape(label)}: rank {rank_words(rank)}" for label, rank, *_ in steps
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
        nulls = [(label, null, words) for label, _, null, words in steps if null is not None]
        if nulls:
            figure.add_trace(
                go.Scatter(
                    x=[label for label, *_ in nulls],
                    y=[height(null) for _, null, _ in nulls],
                    mode="markers",
                    name=legend_name(f"{name}, control", style),
                    cliponaxis=False,
                    marker={
                        **marker,
                        "color": style.colors.paper,
                        "line": {"color": color, "width": 1.5},
                    },
                    hovertext=[
                        f"{escape(words)}: rank {rank_words(null)}" for _, null, words in nulls
                    ],
                    hovertemplate="%{hovertext}<extra></extra>",
                )
            )
    figure.add_trace(
        go.Scatter(
            x=[labels[0], labels[-1]],
            y=[top + 0.5] * 2,
            mode="lines",
            name=f"Top {top:,}",
            line={"color": style.colors.muted, "width": 1, "dash": "dash"},
            hoverinfo="skip",
        )
    )
    ticks = [tick for power in range(8) for tick in (10**power, 3 * 10**power) if tick <= last]
    figure.update_xaxes(
        categoryorder="array",
        categoryarray=labels,
        range=[-0.4, len(labels) - 0.6],
        ticks="",
        tickvals=labels,
        ticktext=[tick_label(label) for label in labels],
        autotickangles=[0, 90],  # at less than 90 degrees, lines of neighbors would overlap
        automargin=True,
    )
    figure.update_yaxes(
        type="log",
        autorange=False,
        range=[log10(1.6 * last), log10(0.6)],
        tickvals=ticks,
        ticktext=[f"{tick:,}" for tick in ticks],
        showgrid=True,
    )
    figure.update_layout(hovermode="closest")
    return with_legend(figure, style)


def chart(summaries: Sequence[WhySummary], style: Style) -> go.Figure:
    """The ranks of one document if only one is explained, otherwise the causes of all misses."""
    if all(summary.asked.corpus.typed and len(summary.explained) == 1 for summary in summaries):
        explanations = {
            summary.name: next(iter(summary.explained.values())) for summary in summaries
        }
        return ladder_chart(explanations, style)
    return causes_chart(summaries, style)
