"""Causes of misses as bars, and the ranks of one document as a ladder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.why_causes import CAUSES, Why
from poslens.figures.figure_base import (
    Provenances,
    bar_pattern,
    canvas,
    faint,
    intervals,
    legend_name,
)
from poslens.figures.legends import with_legend
from poslens.figures.palettes import Style, escape
from poslens.studies.why.summary import CHANGES, NULLS, WhySummary, percent, rank_words

_SIDES = ("top left", "top right", "bottom left", "bottom right")


def _wrapped(label: str) -> str:
    """A long label with a line for each word, so that a narrow figure has room for it."""
    return label.replace(" ", "<br>") if len(label) > len("Competitor") else label


def causes_chart(
    summaries: Sequence[WhySummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """A group of bars for each cause, one bar for each model: the share of its misses in percent,
    with 95% intervals. Each bar's customdata is [model, cause]."""
    figure = canvas("why_causes", style, "", "Share of misses (%)", provenance)
    for index, one in enumerate(summaries):
        colour = str(style.line(index)["color"])
        found = [one.share(cause) for cause in CAUSES]
        error = intervals(found, style.colours.ink)
        for side in ("array", "arrayminus"):
            error[side] = [100 * value for value in error[side]]
        counts = [one.count(cause) for cause in CAUSES]
        figure.add_trace(
            go.Bar(
                x=[cause.capitalize() for cause in CAUSES],
                y=[100 * share.value if share else 0.0 for share in found],
                name=legend_name(f"{one.name}, {len(one.misses):,} misses", style),
                customdata=[[one.name, cause] for cause in CAUSES],
                text=[f"{n:,}" if n else "" for n in counts],
                textposition="outside",
                textfont={"size": style.small, "color": style.colours.muted},
                cliponaxis=False,
                marker={
                    "color": faint(colour, 0.85),
                    "line": {"color": colour, "width": 1},
                    "pattern": bar_pattern(index, style),
                },
                error_y=error,
                hovertext=[
                    f"{escape(one.name)}: {cause}, {n:,} misses"
                    + (f", {percent(share)}" if share else "")
                    for cause, n, share in zip(CAUSES, counts, found, strict=True)
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    figure.update_layout(barmode="group", bargap=0.25, hovermode="closest")
    figure.update_xaxes(ticks="", showline=False, autotickangles=[0, 45], automargin=True)
    figure.update_yaxes(showgrid=True, rangemode="tozero")
    return with_legend(figure, style)


def ladder_chart(found: Mapping[str, Why], style: Style, provenance: Provenances = ()) -> go.Figure:
    """The ranks of a document under each model: as it is and after each change (filled marks), and
    after each change's null (open marks). Ranks are on a logarithmic axis with 1 at the top; the
    dashed line is the top k. A document that is not found is drawn below the last rank."""
    figure = canvas("why_ladder", style, "", "Rank", provenance)
    last = max(one.n_documents for one in found.values())
    top = next(iter(found.values())).top

    def drawn(rank: int) -> float:
        return 1.3 * last if rank == NOT_FOUND else float(rank)

    labels = ["As it is"] + [
        words.capitalize()
        for cause, words in CHANGES.items()
        if any(cause in one.steps for one in found.values())
    ]
    for index, (name, one) in enumerate(found.items()):
        colour = str(style.line(index)["color"])
        steps: list[tuple[str, int, int | None, str]] = [(labels[0], one.rank, None, "")]
        for cause, words in CHANGES.items():
            if step := one.steps.get(cause):
                steps.append((words.capitalize(), step.rank, step.null, NULLS[cause]))
        figure.add_trace(
            go.Scatter(
                x=[label for label, *_ in steps],
                y=[drawn(rank) for _, rank, *_ in steps],
                mode="lines+markers+text",
                name=legend_name(name, style),
                text=[rank_words(rank) for _, rank, *_ in steps],
                # Models often agree: their ranks stand on different sides of one mark.
                textposition="top center" if len(found) == 1 else _SIDES[index % len(_SIDES)],
                textfont={"size": style.small, "color": style.colours.ink},
                cliponaxis=False,
                line={"color": faint(colour, 0.45), "width": style.line_width},
                marker={
                    "color": colour,
                    "size": 0.8 * style.font_size,
                    "symbol": style.symbol(index),
                },
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
                    y=[drawn(null) for _, null, _ in nulls],
                    mode="markers",
                    name=legend_name(f"{name}, null", style),
                    cliponaxis=False,
                    marker={
                        "color": style.colours.paper,
                        "size": 0.8 * style.font_size,
                        "symbol": style.symbol(index),
                        "line": {"color": colour, "width": 1.5},
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
            line={"color": style.colours.muted, "width": 1, "dash": "dash"},
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
        ticktext=[_wrapped(label) for label in labels],
        autotickangles=[0, 45],
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


def chart(summaries: Sequence[WhySummary], style: Style, provenance: Provenances = ()) -> go.Figure:
    """The ladder of one document, or the causes of all misses."""
    if all(one.asked.corpus.typed and len(one.explained) == 1 for one in summaries):
        found = {one.name: next(iter(one.explained.values())) for one in summaries}
        return ladder_chart(found, style, provenance)
    return causes_chart(summaries, style, provenance)
