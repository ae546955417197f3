"""The subject and the result of the study `positions`, its tables and its figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import BUCKET_WORDS, LENGTH_BUCKETS, length_bucket
from poslens.attribution.datasets import Collection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.position_effect import MARGIN as RANK_MARGIN
from poslens.attribution.evaluation.position_effect import (
    PositionEffect,
    PositionRanks,
    QueryPositions,
    first_minus_last,
    position_effect,
    query_positions,
)
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.types import TextPair
from poslens.cache.kinds.interventions import RankedPair, cause_key
from poslens.compute.provenance import resampling
from poslens.figures.figure_base import (
    band,
    canvas,
    faint,
    group,
    legend_name,
    near_unit,
    with_legend,
)
from poslens.figures.palettes import Style
from poslens.paired import ItemMeasure
from poslens.rows import P_VALUE, ModelRow, Table, column
from poslens.study import Asked, ModelSummary

ALL, WHOLE = "all", "read whole"
FIRST_MINUS_LAST = "drop in nDCG@10 (first minus last)"
"""Not "position effect": a lower drop may be a stronger effect. Not "nDCG@10": a sentence that it
is lower would read as a worse ranking."""


@dataclass(frozen=True)
class Moved:
    """The pairs whose evidence is moved, the control pairs (`nulls`), in which another sentence is
    moved, and the corpus in which they are ranked, with its `fingerprint`."""

    dataset: str
    pairs: tuple[TextPair, ...]
    nulls: tuple[TextPair, ...]
    collection: Collection
    fingerprint: str
    selection: str
    notes: tuple[str, ...]

    @property
    def items(self) -> list[RankedPair]:
        """Every pair to rank, including controls."""
        return [RankedPair(pair, self.fingerprint) for pair in (*self.pairs, *self.nulls)]


@dataclass(frozen=True)
class RankedQueries:
    """The ranked queries of one model, which is `order_blind` or not, and the effect in each group
    of them."""

    queries: tuple[QueryPositions, ...]
    order_blind: bool

    @cached_property
    def groups(self) -> dict[tuple[str, str], PositionEffect]:
        """The effect by (kind, name) of a group: all queries, those of documents read in full, and
        each length and language with queries."""
        groups = {
            (ALL, ""): list(self.queries),
            (WHOLE, ""): [query for query in self.queries if query.whole],
        }
        for bucket in LENGTH_BUCKETS:
            groups["length", bucket] = [
                query
                for query in self.queries
                if query.pair.document_tokens
                and length_bucket(query.pair.document_tokens) == bucket
            ]
        languages = sorted({query.pair.language or "" for query in self.queries})
        for language in languages if len(languages) > 1 else ():
            groups["language", language or "unknown"] = [
                query for query in self.queries if (query.pair.language or "") == language
            ]
        effects = {
            key: position_effect(queries, self.order_blind) for key, queries in groups.items()
        }
        return {key: effect for key, effect in effects.items() if effect is not None}


@dataclass(frozen=True)
class PositionSummary(ModelSummary[Asked[Moved]]):
    """The position effect of one model. `left_out` counts the pairs whose evidence the model reads
    in full at fewer than two of the positions that it moves to; `failed` has the reasons why others
    have no ranks. `null` is the effect of moving another sentence; None if it was not computed."""

    ranked: RankedQueries
    effect: PositionEffect
    null: PositionEffect | None
    left_out: int
    failed: Mapping[str, str]

    @property
    def queries(self) -> tuple[QueryPositions, ...]:
        """The ranked queries."""
        return self.ranked.queries

    @cached_property
    def by_query(self) -> ItemMeasure:
        """nDCG@10 with the evidence first minus last, by query."""
        pairs, corpus = [query.pair for query in self.queries], self.asked.corpus.fingerprint
        items = [(pair.pair_id, f"{cause_key(pair).fingerprint}:{corpus}") for pair in pairs]
        gains = np.array([query.gains for query in self.queries])
        return ItemMeasure(
            FIRST_MINUS_LAST,
            "queries",
            RANK_MARGIN,
            dict(zip(items, first_minus_last(gains)[:, None], strict=True)),
            {item: pair.document for item, pair in zip(items, pairs, strict=True)},
            largest=2.0,  # each is between -1 and 1
            label=itemgetter(0),
        )


def ranked_queries(
    pairs: Sequence[TextPair],
    relocations: Mapping[str, Relocation],
    ranks: Mapping[str, PositionRanks],
    positions: int,
) -> list[QueryPositions]:
    """The ranked queries of `pairs`: those that have both results, and whose evidence is read in
    full at two or more of the positions that it moves to."""
    queries = (
        query_positions(pair, relocations[pair.pair_id], ranks[pair.pair_id], positions)
        for pair in pairs
        if pair.pair_id in relocations and pair.pair_id in ranks
    )
    return [query for query in queries if query is not None]


def no_effect(name: str, failed: Mapping[str, str], n: int) -> UserError:
    """The error for a model that has ranks at two positions for none of `n` pairs; `failed` has
    reasons by pair."""
    if not n:
        return UserError("There is no pair whose evidence can be moved: select other pairs.")
    if len(failed) == n:
        return UserError(f"No pair could be ranked with {name}: {next(iter(failed.values()))}")
    return UserError(
        f"In none of the {n:,} pairs does {name} read the evidence whole at two of the positions "
        "that it moves to: choose shorter documents, or a model with a longer context limit."
    )


# -- tables ----------------------------------------------------------------------------------------

QUERIES, DOCUMENTS = "Number of queries.", "Number of distinct documents of these queries."
AT = "nDCG@10 with the evidence {}, 0 to 1."
MIDDLE = AT.format("in the middle (mean of two positions if their number is even)")
EFFECT = (
    "nDCG@10 with the evidence first minus last, paired within the query, -1 to 1; positive is "
    "primacy."
)
THIRD = "Mean nDCG@10 over the positions of the {} third, 0 to 1."
PSI = "1 - min / max of nDCG@10 over the positions, 0 to 1; interval one-sided, from 0."
VERDICT = "higher, lower, equivalent (within the margin) or too few documents."
HOLM = "p of the difference, adjusted by Holm for all rows; null below 10 documents."
MARGIN = "Difference of nDCG@10 up to which two values are equivalent."
NEEDED = "Documents needed for a decision, estimated; null once decided, or if unknown."


@dataclass(frozen=True)
class PositionEffectRow(ModelRow):
    """One model over all of its queries."""

    queries: int = column(QUERIES)
    documents: int = column(DOCUMENTS)
    first: Estimate | None = column(AT.format("first"))
    middle: Estimate | None = column(MIDDLE)
    last: Estimate | None = column(AT.format("last"))
    first_minus_last: Estimate | None = column(EFFECT, form="+.3f")
    verdict: str = column(VERDICT)
    p_holm: float | None = column(HOLM, title="p (Holm)", form=P_VALUE)
    margin: float = column(MARGIN, form="g", shown=False)
    documents_needed: int | None = column(NEEDED)
    first_third: Estimate | None = column(THIRD.format("first"), shown=False)
    middle_third: Estimate | None = column(THIRD.format("middle"), shown=False)
    last_third: Estimate | None = column(THIRD.format("last"), shown=False)
    first_minus_last_third: Estimate | None = column(
        "First third minus last third, -1 to 1.", form="+.3f", shown=False
    )
    controlled_psi: Estimate | None = column(PSI, title="controlled PSI", one_sided=True)
    null_first_minus_last: Estimate | None = column(
        "First minus last if another sentence of similar length is moved instead; null without the "
        "control.",
        title="first minus last, control",
        form="+.3f",
    )
    left_out: int = column(
        "Pairs whose evidence is read whole at fewer than two of the positions that it moves to.",
        title="pairs left out",
    )
    failed: int = column("Pairs that could not be ranked.", shown=False)


@dataclass(frozen=True)
class PositionRow(ModelRow):
    """One position."""

    moved: str = column("evidence, or null: another sentence of similar length.")
    position: float = column("Relative position, 0 (first) to 1 (last) of what the model reads.")
    queries: int = column(QUERIES)
    documents: int = column(DOCUMENTS)
    ndcg_at_10: Estimate | None = column("nDCG@10, 0 to 1.", title="nDCG@10")
    mrr: Estimate | None = column("Mean of 1 / rank, 0 to 1.", title="MRR")
    rank: Estimate | None = column("Mean rank, from 1.", form=".2f")


@dataclass(frozen=True)
class PositionGroupRow(ModelRow):
    """The queries of one length or language, or of documents that the model reads whole."""

    by: str = column("all, read whole (the documents), length or language.", title="grouped by")
    group: str = column("The length bucket or the language; else empty.", words=BUCKET_WORDS)
    queries: int = column(QUERIES)
    documents: int = column(DOCUMENTS)
    first: Estimate | None = column(AT.format("first"))
    middle: Estimate | None = column(MIDDLE)
    last: Estimate | None = column(AT.format("last"))
    first_minus_last: Estimate | None = column(EFFECT, form="+.3f")
    controlled_psi: Estimate | None = column(PSI, title="controlled PSI", one_sided=True)


@dataclass(frozen=True)
class PositionQueryRow(ModelRow):
    """One query."""

    query: str = column("The query.")
    rank_first: int = column("Rank with the evidence first, from 1.", title="rank, first")
    rank_middle: int = column(
        "Rank with the evidence in the middle; of two middle positions, at the first.",
        title="rank, middle",
    )
    rank_last: int = column("Rank with the evidence last.", title="rank, last")
    first_minus_last: float = column(EFFECT, form="+.3f")
    best: int = column("Best rank at any position.", shown=False)
    worst: int = column("Worst rank at any position.", shown=False)
    read_whole: bool = column("Whether the model reads the whole document.", shown=False)
    length: str | None = column(
        "Bucket of the document's length in tokens; null if unknown.", words=BUCKET_WORDS
    )
    language: str | None = column("Language of the pair; null if unknown.")
    id: str = column("Id of the pair.")


def _effects(summary: PositionSummary) -> Iterator[PositionEffectRow]:
    effect = summary.effect
    yield PositionEffectRow(
        model=summary.name,
        queries=effect.n,
        documents=effect.n_documents,
        first=effect.first,
        middle=effect.middle,
        last=effect.last,
        first_minus_last=effect.effect.difference,
        verdict=effect.effect.verdict,
        p_holm=effect.effect.p_holm,
        margin=effect.effect.margin,
        documents_needed=effect.effect.needed,
        first_third=effect.thirds[0],
        middle_third=effect.thirds[1],
        last_third=effect.thirds[2],
        first_minus_last_third=effect.third_effect.difference,
        controlled_psi=effect.psi,
        null_first_minus_last=None if summary.null is None else summary.null.effect.difference,
        left_out=summary.left_out,
        failed=len(summary.failed),
    )


def _positions(summary: PositionSummary) -> Iterator[PositionRow]:
    for moved, effect in (("evidence", summary.effect), ("null", summary.null)):
        if effect is None:
            continue
        rows = zip(effect.positions, effect.ndcg, effect.mrr, effect.rank, strict=True)
        for position, *means in rows:
            yield PositionRow(summary.name, moved, position, effect.n, effect.n_documents, *means)


def _groups(summary: PositionSummary) -> Iterator[PositionGroupRow]:
    for (by, name), effect in summary.ranked.groups.items():
        yield PositionGroupRow(
            summary.name,
            by,
            name,
            effect.n,
            effect.n_documents,
            effect.first,
            effect.middle,
            effect.last,
            effect.effect.difference,
            effect.psi,
        )


def _queries(summary: PositionSummary) -> Iterator[PositionQueryRow]:
    """Rows of queries, the largest effect of position first."""
    middle = (summary.asked.settings.positions - 1) // 2
    effects = [float(query.gains[0] - query.gains[-1]) for query in summary.queries]
    order = sorted(range(len(effects)), key=lambda i: -abs(effects[i]))
    for i in order:
        query = summary.queries[i]
        tokens = query.pair.document_tokens
        yield PositionQueryRow(
            summary.name,
            query.pair.query,
            int(query.ranks[0]),
            int(query.ranks[middle]),
            int(query.ranks[-1]),
            effects[i],
            int(query.ranks.min()),
            int(query.ranks.max()),
            query.whole,
            length_bucket(tokens) if tokens else None,
            query.pair.language,
            query.pair.pair_id,
        )


TABLES = {
    "effect": Table(PositionEffectRow, _effects, "By model"),
    "positions": Table(PositionRow, _positions, "By position", on_page=False),
    "groups": Table(PositionGroupRow, _groups, "By length and language"),
    "queries": Table(PositionQueryRow, _queries, "By query", on_page=False),
}


# -- figure ----------------------------------------------------------------------------------------

TITLE = "Evidence position (0% first, 100% last)"


def ndcg_by_position(summaries: Sequence[PositionSummary], style: Style) -> go.Figure:
    """nDCG@10 by position over the same queries, a line for each model. Bands are 95% intervals of
    each query's nDCG@10 minus its mean over positions, so they exclude differences between queries;
    they end at 0 and 1. Thin lines are the null control, which moves another sentence instead of
    the evidence."""
    figure = canvas("position_effect", style, TITLE, "nDCG@10")
    for number, summary in enumerate(summaries):
        look, key = style.line(number), f"model {number}"
        effects = [("", summary.effect)] + (
            [("another sentence moved", summary.null)] if summary.null is not None else []
        )
        for role, effect in effects:
            x = [100 * position for position in effect.positions]
            _band(figure, x, effect, faint(str(look["color"]), 0.07 if role else 0.16), key)
            name = summary.name if not role else f"{summary.name}, {role}"
            trace = go.Scatter(
                x=x,
                y=[value.value for value in effect.ndcg],
                mode="lines+markers" if not role else "lines",
                name=legend_name(name, style),
                line=look if not role else {**look, "width": 0.6 * style.line_width},
                marker=style.marker(number, 0.5, later=len(summaries) - 1 - number),
                cliponaxis=False,  # a marker at 0 is drawn in full
                customdata=[
                    [str(value), f"{rank.value:.2f}"]
                    for value, rank in zip(effect.ndcg, effect.rank, strict=True)
                ],
                hovertemplate="%{customdata[0]}, mean rank %{customdata[1]}",
            )
            figure.add_trace(group(trace, key, summary.name, role))
    figure.update_xaxes(
        range=[-2, 102],
        tickvals=list(range(0, 101, 20)),
        unifiedhovertitle={"text": "position %{x:.0f}%"},
    )
    figure.update_yaxes(**near_unit(figure))
    figure.update_layout(hovermode="x unified")
    return with_legend(figure, style)


def band_words(summary: PositionSummary) -> str:
    """What the bands of a summary are; empty with too few documents for one."""
    deviations = summary.effect.deviations
    if any(deviation.interval is None for deviation in deviations):
        return ""
    over = resampling(deviations[0].n_resampled, deviations[0].resampled)
    return f"interval within queries, after each query's mean is subtracted: {over}"


def _band(figure: go.Figure, x: list[float], effect: PositionEffect, color: str, key: str) -> None:
    low, high = list[float](), list[float]()
    for mean, deviation in zip(effect.ndcg, effect.deviations, strict=True):
        if deviation.interval is None:
            return
        # The interval of a difference around a mean near 1 may exceed what nDCG@10 can be.
        low.append(max(mean.value + deviation.interval[0] - deviation.value, 0.0))
        high.append(min(mean.value + deviation.interval[1] - deviation.value, 1.0))
    figure.add_trace(band(x, low, high, color, key))
