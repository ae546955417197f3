"""The result of a chunk plan for one model, its figure and its tables. The first table has the
arguments of text splitters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import Collection
from poslens.attribution.evaluation.chunk_plan import (
    MEASURES,
    UNKNOWN,
    IndexSetting,
    Name,
    SettingChoice,
    Tried,
)
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.recommendation import (
    Recommendation,
    Wanted,
    setting_recommendation,
)
from poslens.attribution.retrievers.detect import family_of
from poslens.figures.figure_base import canvas, faint, group, intervals, legend_name, with_legend
from poslens.figures.palettes import Style
from poslens.rows import PERCENT, PERCENTAGE_POINTS, ModelRow, Table, column
from poslens.study import Asked, ModelSummary

Changes = Mapping[Name, Comparison | None]


@dataclass(frozen=True)
class ChunkCorpus:
    """The documents and queries on which settings are tried, and the settings; whole documents come
    first."""

    collection: Collection
    index_settings: tuple[IndexSetting, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ChunkSummary(ModelSummary[Asked[ChunkCorpus]]):
    """The results of one model: the settings that were `tried`, and the reasons why others were
    `left_out`. `changes` are paired differences on held-out documents, the chosen setting minus its
    reference, and `queries` the ids of the queries that each document answers."""

    tried: tuple[Tried, ...]
    left_out: Mapping[str, str]
    choice: SettingChoice | None
    changes: Changes
    queries: Mapping[str, tuple[str, ...]]

    @property
    def unit(self) -> str:
        """The unit of window sizes: tokens, or words if the tokenizer is not on this machine."""
        spec = self.asked.spec
        dense = family_of(spec).search == "vectors" and not spec.without_files
        return "tokens" if dense else "words"

    @cached_property
    def recommendation(self) -> Recommendation:
        """Whether the chosen setting is recommended instead of its reference."""
        if self.choice is None:
            return Recommendation(False, "There is no other setting, or no second document.")
        return setting_recommendation(
            {
                MEASURES[name].title: (MEASURES[name].wanted, change)
                for name, change in self.changes.items()
            }
        )

    @property
    def held_out(self) -> tuple[str, ...]:
        """The documents on which settings are evaluated; none without a choice."""
        return () if self.choice is None else self.choice.held_out

    def share(self, tried: Tried, name: Name) -> Estimate | None:
        """A measure of a setting over the held-out documents; None if those have nothing to
        count."""
        return MEASURES[name].share(tried, self.held_out, self.asked.settings.top)

    @property
    def decided(self) -> bool:
        """Whether any measure differs on held-out documents."""
        return any(
            change and change.verdict in ("higher", "lower") for change in self.changes.values()
        )

    @property
    def plan(self) -> Tried:
        """The setting to use: the recommended one, or whole documents."""
        if self.choice is not None and self.recommendation.recommended:
            return self.choice.chosen
        return self.tried[0]


# -- tables ----------------------------------------------------------------------------------------

SETTING = (
    "whole, windows:SIZE:OVERLAP or late:SIZE; +title if each window after the first begins with "
    "the document's title."
)


@dataclass(frozen=True)
class PlanRow(ModelRow):
    """The setting to use, as arguments of text splitters."""

    recommended: bool = column("Whether held-out documents show that it is better.")
    setting: str = column(SETTING)
    chunk_size: int | None = column("Size of a window; null for whole documents.")
    chunk_overlap: int | None = column("Overlap of consecutive windows; null for whole documents.")
    unit: str = column(
        "Unit of both numbers: tokens (without special tokens) or words (punctuation marks count "
        "as words)."
    )
    tokenizer: str | None = column(
        "Hugging Face id of the tokenizer that counts; null if it is not known."
    )
    title_prefix: bool = column("Whether each window after the first begins with the title.")
    late_chunking: bool = column("Whether the text is encoded once and its token vectors chunked.")
    reason: str = column("Reason, in one sentence.", shown=False)


@dataclass(frozen=True)
class SettingRow(ModelRow):
    """One setting that was tried, evaluated on held-out documents."""

    setting: str = column(SETTING)
    role: str = column(
        "chosen, reference (what it is compared with), or empty.", title="compared as"
    )
    unretrieved: Estimate | None = column(
        "Share of sentences that don't retrieve their own document in the top k, 0 to 1.",
        form=PERCENT,
    )
    cut: Estimate | None = column(
        "Share of evidence that no chunk contains in full within the part that the model reads, 0 "
        "to 1; null without evidence.",
        title="cut evidence",
        form=PERCENT,
    )
    reciprocal_rank: Estimate | None = column(
        "Mean reciprocal rank of the document with the evidence (or of the first relevant one), 0 "
        "to 1; null without queries.",
        title="mean reciprocal rank",
    )
    vectors: int = column("Number of vectors of the whole corpus.")
    vectors_per_document: Estimate | None = column(
        "Mean number of vectors per document.", form=".1f"
    )
    seconds_per_document: Estimate | None = column(
        "Mean time to encode a document, measured on at most 16; null for endpoints and BM25."
    )
    documents: int = column("Number of held-out documents.")


@dataclass(frozen=True)
class ChangeRow(ModelRow):
    """The change in one measure from the reference to the chosen setting, on held-out documents."""

    measure: str = column(
        f"{', '.join(measure.heading for measure in MEASURES.values())}: as in the table of "
        "settings."
    )
    wanted: Wanted = column("The better direction: higher or lower.")
    chosen: str = column("The setting that was chosen on the other half.")
    reference: str = column("The setting that it is compared with.")
    change: Comparison | None = column(
        "Chosen minus reference, paired by document.", form="+.3f", of_share=PERCENTAGE_POINTS
    )
    share: bool = column("Whether the measure is a share.", shown=False, in_files=False)


@dataclass(frozen=True)
class ChunkQueryRow(ModelRow):
    """A query searched in the index of one setting."""

    query: str = column("Id of the query.")
    document: str = column("Id of the document that answers it.")
    setting: str = column(SETTING)
    rank: int | None = column(
        "Best rank of a document that answers the query; null if no such document is found, or if "
        "the model reads no token of the query."
    )
    cut: bool | None = column(
        "Whether no chunk contains all of the evidence; null without evidence.",
        title="cut evidence",
    )
    part: str = column("held out, or selection: the half on which the setting was chosen.")


def _plan(chunk_summary: ChunkSummary) -> Iterator[PlanRow]:
    setting, chunks = chunk_summary.plan.setting, chunk_summary.plan.setting.chunks
    whole = chunks.kind == "whole"
    unit = chunk_summary.unit
    yield PlanRow(
        chunk_summary.name,
        chunk_summary.recommendation.recommended,
        str(setting),
        None if whole else chunks.size,
        None if whole else chunks.overlap,
        unit,
        chunk_summary.model.spec.hub_id or None if unit == "tokens" else None,
        setting.titled,
        chunks.kind == "late",
        chunk_summary.recommendation.reason,
    )


def _settings(chunk_summary: ChunkSummary) -> Iterator[SettingRow]:
    for tried in chunk_summary.tried:
        role = ""
        if chunk_summary.choice is not None and tried is chunk_summary.choice.chosen:
            role = "chosen"
        elif chunk_summary.choice is not None and tried is chunk_summary.choice.reference:
            role = "reference"
        yield SettingRow(
            chunk_summary.name,
            str(tried.setting),
            role,
            chunk_summary.share(tried, "unretrieved"),
            chunk_summary.share(tried, "cut"),
            chunk_summary.share(tried, "reciprocal_rank"),
            tried.n_vectors,
            tried.vectors,
            tried.seconds,
            len(chunk_summary.held_out),
        )


def _changes(chunk_summary: ChunkSummary) -> Iterator[ChangeRow]:
    for name, change in chunk_summary.changes.items():
        if chunk_summary.choice is not None and change is not None:
            yield ChangeRow(
                chunk_summary.name,
                MEASURES[name].heading,
                MEASURES[name].wanted,
                str(chunk_summary.choice.chosen.setting),
                str(chunk_summary.choice.reference.setting),
                change,
                MEASURES[name].is_share,
            )


def _queries(chunk_summary: ChunkSummary) -> Iterator[ChunkQueryRow]:
    held_out = frozenset(chunk_summary.held_out)
    for document, queries in chunk_summary.queries.items():
        for number, query in enumerate(queries):
            for tried in chunk_summary.tried:
                if (result := tried.documents.get(document)) is None:
                    continue
                rank, cut = int(result.query_ranks[number]), int(result.cut[number])
                yield ChunkQueryRow(
                    chunk_summary.name,
                    query,
                    document,
                    str(tried.setting),
                    None if rank in (0, NOT_FOUND) else rank,
                    None if cut == UNKNOWN else bool(cut),
                    "held out" if document in held_out else "selection",
                )


TABLES: Mapping[str, Table[Any]] = {
    "plan": Table(PlanRow, _plan, "Setting for text splitters"),
    "settings": Table(SettingRow, _settings, "Settings on held-out documents"),
    "changes": Table(ChangeRow, _changes, "Chosen setting minus its reference"),
    "queries": Table(ChunkQueryRow, _queries, "Queries by setting", on_page=False),
}


# -- figure ----------------------------------------------------------------------------------------

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


def shares_by_size(summaries: Sequence[ChunkSummary], style: Style) -> go.Figure:
    """The percentage of unretrieved sentences of held-out documents by vectors per document, with a
    marker for each setting. Bars are 95% intervals. A ring marks the recommended setting, or whole
    documents if no other setting is shown to be better."""
    top = summaries[0].asked.settings.top if summaries else 0
    figure = canvas(
        "chunks", style, "Vectors per document", f"Unretrieved sentences (top {top}), %"
    )
    for number, summary in enumerate(summaries):
        if summary.choice is None:
            continue
        color, unit = str(style.line(number)["color"]), summary.unit
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
        recommended = summary.recommendation.recommended
        for tried, share in shares:
            if tried is not summary.plan:
                continue
            use = f"use {tried.setting.title(unit)}"
            ring_name = use if recommended else "keep: nothing better shown"
            ring = {"symbol": "circle-open", "size": 1.6 * style.font_size, "line": {"width": 2}}
            figure.add_trace(
                go.Scatter(
                    x=[_size(tried)],
                    y=[share.value],
                    mode="markers",
                    cliponaxis=False,
                    name=legend_name(f"{summary.name}, {ring_name}", style),
                    marker={**ring, "color": style.colors.ink},
                    hoverinfo="skip",
                    legendgroup=f"{number} {kind_of(tried.setting)}",
                )
            )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    return with_legend(figure, style)


def _size(tried: Tried) -> float:
    return tried.n_vectors / max(1, len(tried.documents))
