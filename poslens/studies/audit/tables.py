"""The tables and the figure of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.proportions import AGRESTI_COULL
from poslens.attribution.evaluation.audit import N_BINS, UnretrievedCurve, groups
from poslens.attribution.evaluation.comparison import estimate_of
from poslens.attribution.retrievers import limits
from poslens.figures.figure_base import (
    band,
    canvas,
    faint,
    group,
    legend_name,
    positions,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.paired import DIFFERENCES
from poslens.rows import PERCENT, PERCENTAGE_POINTS, ModelRow, Table, column
from poslens.studies.audit.summary import AuditSummary

CHUNKS = "How documents are chunked in the index."
SEARCHED = "Sentences that were searched for."
SHARE = "Share of sentences that do not retrieve their own document, 0 to 1."
SHUFFLED = "Share of unretrieved sentences if each document's are in random order, 0 to 1."
LAST_MINUS_FIRST = (
    "Share of unretrieved sentences in the last third of documents minus that in the first third, "
    "-1 to 1{}; positive: sentences near the end are harder to retrieve."
)


@dataclass(frozen=True)
class AuditRow(ModelRow):
    """An index: a model, and how documents are chunked."""

    chunks: str = column(CHUNKS)
    unretrieved: Estimate | None = column(SHARE, form=PERCENT)
    unretrieved_random_order: Estimate | None = column(
        SHUFFLED, title="unretrieved (shuffled)", form=PERCENT
    )
    last_minus_first: Estimate | None = column(LAST_MINUS_FIRST.format(""), form=PERCENTAGE_POINTS)
    last_minus_first_random_order: Estimate | None = column(
        LAST_MINUS_FIRST.format(", with the sentences in random order"),
        title="last minus first (shuffled)",
        form=PERCENTAGE_POINTS,
    )
    unretrieved_read: Estimate | None = column(
        "Share of unretrieved sentences among those that the model reads whole, 0 to 1; null if it "
        "reads none whole, and for endpoints and Python objects.",
        title="unretrieved, fully read sentences only",
        form=PERCENT,
    )
    unretrieved_truncated: Estimate | None = column(
        "Share of unretrieved sentences among those that the model does not read whole, 0 to 1; "
        "null if it reads all, and for endpoints and Python objects.",
        form=PERCENT,
        shown=False,
    )
    recovered: Estimate | None = column(
        "Drop in the share of unretrieved sentences from the model's first index to this one, over "
        "the same sentences; null for the first.",
        form=PERCENTAGE_POINTS,
    )
    documents: int = column("Number of audited documents.")
    left_out: int = column(
        "Number of documents that could not be searched for.", title="documents left out"
    )
    truncated: int | None = column(
        "Number of documents that the model truncates; null for endpoints and Python objects."
    )
    sentences: int = column(SEARCHED)
    repeated: int | None = column(
        "Number of these sentences that occur verbatim in another audited document, too; null "
        "unless all documents were searched for.",
        title="sentences in several documents",
    )
    searched_for: str = column("sentence or question.", shown=False)
    top: int = column(
        "The k of the top k: a sentence is unretrieved if its document is not in it.", shown=False
    )


@dataclass(frozen=True)
class AuditPositionRow(ModelRow):
    """A bin of positions in the documents of an index."""

    chunks: str = column(CHUNKS)
    order: str = column("original or random: the order of the sentences of each document.")
    from_percent: float = column("Beginning of the bin, in percent of the document.")
    to_percent: float = column("End of the bin, in percent of the document.")
    sentences: int = column(SEARCHED)
    unretrieved: Estimate | None = column(
        "Share of unretrieved sentences; null in an empty bin.", form=PERCENT
    )


@dataclass(frozen=True)
class AuditGroupRow(ModelRow):
    """The documents of one language or length."""

    chunks: str = column(CHUNKS)
    by: str = column("language or length.", title="grouped by")
    group: str = column("The language, or the length in words.")
    documents: int = column("Number of audited documents.")
    sentences: int = column(SEARCHED)
    unretrieved: Estimate | None = column(SHARE, form=PERCENT)
    unretrieved_random_order: Estimate | None = column(
        SHUFFLED, title="unretrieved (shuffled)", form=PERCENT
    )


@dataclass(frozen=True)
class AuditDocumentRow(ModelRow):
    """A document with unretrieved sentences."""

    chunks: str = column(CHUNKS)
    document: str = column("Id of the document.")
    language: str = column("Language of the document; empty if unknown.")
    words: int = column("Number of words of the document.")
    unretrieved_sentences: int = column("Number of its sentences that do not retrieve it.")
    sentences: int = column("Number of its sentences that were searched for.")


@dataclass(frozen=True)
class TruncationRow(ModelRow):
    """A text on which the point of truncation was measured."""

    text: int = column("Number of the text, from 1.")
    documents_joined: int = column(
        "Documents that were joined to make the text.", title="made from documents"
    )
    tokens: int = column("Number of tokens of the text.")
    last_token_from: int = column(
        "Number of the first token of the last word that the model reads, from 1.",
        title="last word read: from token",
    )
    last_token_to: int = column(
        "Number of the last token of the last word that the model reads, from 1.",
        title="last word read: to token",
    )
    context_limit: int | None = column("Context limit of the model, in tokens; null if unknown.")
    read_to_the_end: bool = column("Whether the model reads the text to its end.")
    at_context_limit: bool | None = column(
        "Whether the model truncates at its context limit; null if that is unknown.",
        title="truncates at context limit",
    )


def _summary(summary: AuditSummary) -> Iterator[AuditRow]:
    yield AuditRow(
        *_index(summary),
        summary.shares["original"],
        summary.shares["random"],
        estimate_of(summary.last_minus_first["original"]),
        estimate_of(summary.last_minus_first["random"]),
        summary.share_among(read=True),
        summary.share_among(read=False),
        estimate_of(summary.recovered),
        len(summary.documents),
        len(summary.failed),
        summary.n_truncated,
        summary.n_sentences,
        summary.n_repeated[0] if summary.n_repeated else None,
        summary.index.query_form,
        summary.index.top,
    )


def _positions(summary: AuditSummary) -> Iterator[AuditPositionRow]:
    for order, curve in summary.curves.items():
        low, high = curve.low, curve.high
        for b in range(N_BINS):
            share = (
                Estimate(
                    float(curve.share[b]),
                    None if low is None else float(low[b]),
                    None if high is None else float(high[b]),
                    n_resampled=0 if curve.share[b] in (0, 1) else len(summary.documents),
                    formula=AGRESTI_COULL if curve.share[b] in (0, 1) else "",
                )
                if np.isfinite(curve.share[b])
                else None
            )
            ends = (100 * b / N_BINS, 100 * (b + 1) / N_BINS)
            yield AuditPositionRow(*_index(summary), order, *ends, int(curve.n[b]), share)


def _groups(summary: AuditSummary) -> Iterator[AuditGroupRow]:
    for part in groups(summary.documents, *summary.index.asked):
        yield AuditGroupRow(
            *_index(summary),
            part.by,
            part.name,
            part.n_documents,
            part.n_sentences,
            part.original_order,
            part.random_order,
        )


def _worst(summary: AuditSummary) -> Iterator[AuditDocumentRow]:
    for ranks, n, of in summary.worst:
        language = ranks.language or ""
        yield AuditDocumentRow(*_index(summary), ranks.document_id, language, ranks.n_words, n, of)


def _truncation(summary: AuditSummary) -> Iterator[TruncationRow]:
    unknown = limits.unknown(summary.index.spec)
    for number, text in enumerate(summary.truncations, start=1):
        yield TruncationRow(
            summary.index.spec.name,
            number,
            text.documents,
            text.n_tokens,
            text.first,
            text.last,
            None if unknown else text.claimed,
            text.reads_all,
            None if unknown else text.as_claimed,
        )


def _index(summary: AuditSummary) -> tuple[str, str]:
    return summary.index.spec.name, str(summary.index.chunks)


TABLES: Mapping[str, Table[Any]] = {
    "summary": Table(AuditRow, _summary),
    "positions": Table(AuditPositionRow, _positions, "By position", on_page=False),
    "groups": Table(AuditGroupRow, _groups, "By language and length"),
    "worst": Table(AuditDocumentRow, _worst, "Documents", on_page=False),
    "truncation": Table(TruncationRow, _truncation, "Where models truncate"),
}
OF_SENTENCES = ("summary", "positions", "groups", "worst", DIFFERENCES)
"""The tables of unretrieved sentences."""


# -- figure ----------------------------------------------------------------------------------------

CENTERS = (np.arange(N_BINS) + 0.5) * 100 / N_BINS


def unretrieved_by_position(summaries: Sequence[AuditSummary], style: Style) -> go.Figure:
    """Share of unretrieved sentences by position: for each index a line for documents in original
    order, and a thin one for their sentences in random order. Bands are 95% intervals."""
    index = summaries[0].index if summaries else None
    title = (
        f"Unretrieved {index.query_form}s (top {index.top})" if index else "Unretrieved sentences"
    )
    figure = canvas("audit", style, "Position in the document (%)", f"{title}, %")
    for number, summary in enumerate(summaries):
        look = style.line(number)
        for order, curve in summary.curves.items():
            original = order == "original"
            key = f"index {number}"
            _band(figure, curve, faint(str(look["color"]), 0.16 if original else 0.07), key)
            name = summary.name if original else f"{summary.name}, shuffled"
            trace = go.Scatter(
                x=CENTERS,
                y=100 * curve.share,
                mode="lines+markers" if original else "lines",
                name=legend_name(name, style),
                line=look if original else {**look, "width": 0.6 * style.line_width},
                opacity=1 if original else 0.7,
                marker=style.marker(number, 0.5),
                cliponaxis=False,  # a marker at 0 is drawn in full
                customdata=[_interval(curve, b) for b in range(N_BINS)],
                hovertemplate="%{y:.1f}%%{customdata}",
            )
            role = "original order" if original else "shuffled"
            figure.add_trace(group(trace, key, summary.name, role))
    figure.update_yaxes(rangemode="tozero")
    return with_legend(positions(figure), style)


def _interval(curve: UnretrievedCurve, b: int) -> str:
    ends = (
        ""
        if curve.low is None or curve.high is None
        else f" [{100 * curve.low[b]:.1f}, {100 * curve.high[b]:.1f}]"
    )
    return f"{ends} of {int(curve.n[b]):,}"


def _band(figure: go.Figure, curve: UnretrievedCurve, color: str, key: str) -> None:
    if curve.low is None or curve.high is None:
        return
    values = np.isfinite(curve.low)
    low, high = 100 * curve.low[values], 100 * curve.high[values]
    figure.add_trace(band(CENTERS[values], low, high, color, key))
