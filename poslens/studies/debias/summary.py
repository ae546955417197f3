"""The measures of one point on the held-out half, and their changes against the plain model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.debiasing.folder import Manifest
from poslens.attribution.evaluation.audit import TOP, SentenceRanks, unretrieved_share
from poslens.attribution.evaluation.comparison import (
    SCORE_MARGIN,
    SHARE_MARGIN,
    Comparison,
    adjusted,
    paired,
    paired_indices,
    paired_sizes,
)
from poslens.attribution.evaluation.position_effect import MARGIN as RANK_MARGIN
from poslens.attribution.evaluation.position_effect import QueryPositions
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.evaluation.recommendation import MARGIN, Recommendation, recommendation
from poslens.compute.compute import DataSetCurve
from poslens.compute.provenance import ModelIdentity
from poslens.studies.cause.service import DataSetCause
from poslens.studies.debias.points import DebiasPoint
from poslens.studies.positions.summary import PositionSummary
from poslens.studies.ranking.service import Ranked


@dataclass(frozen=True)
class Changes:
    """Paired changes against the plain model: in the size of the relocation difference (`effect`)
    and of the position effect on rank (`rank_effect`), in nDCG@10 (`quality`), in the share of
    unretrieved sentences, and in the index of the mean saliency curve (`saliency`). The
    recommendation ignores the last one, because a curve can flatten while position matters as much
    as before. A change is None if the data set does not allow it to be measured."""

    effect: Comparison | None
    rank_effect: Comparison | None
    quality: Comparison | None
    share: Comparison | None
    saliency: Comparison | None

    def parts(self) -> tuple[Comparison | None, ...]:
        """Every comparison, in the order of the fields."""
        return self.effect, self.rank_effect, self.quality, self.share, self.saliency

    def recommendation(self) -> Recommendation:
        """Whether the changed model is recommended over the plain one."""
        bias = {
            "the size of the relocation difference": self.effect,
            "the size of the position effect on rank": self.rank_effect,
        }
        return recommendation(bias, self.quality)


NO_CHANGES = Changes(None, None, None, None, None)


def with_holm(changes: Sequence[Changes | None]) -> list[Changes | None]:
    """The changes with p values adjusted (Holm) for all of their comparisons."""
    comparisons = [part for change in changes if change for part in change.parts()]
    with_p = iter(adjusted(comparisons))
    return [
        None if change is None else Changes(*(next(with_p) for _ in change.parts()))
        for change in changes
    ]


@dataclass(frozen=True)
class DebiasSummary:
    """The measures of one point. `differences` are relocation differences by pair: (document, score
    with the evidence in the last third minus that in the first). `unretrieved` are the ranks of
    sentences of held-out documents, `positions` the ranks of relocated documents, and `saliency` is
    the mean saliency curve of held-out pairs. `plain` is the summary of the plain model, and
    `changes` are against it; both are None for the plain model itself. Measures that the data set
    does not allow are None or empty."""

    point: DebiasPoint
    model: ModelIdentity
    manifest: Manifest | None
    ranked: Ranked | None
    cause: DataSetCause | None
    differences: Mapping[str, tuple[str, float]]
    unretrieved: tuple[SentenceRanks, ...]
    positions: PositionSummary | None = None
    saliency: DataSetCurve | None = None
    plain: DebiasSummary | None = None
    changes: Changes | None = None
    recommended: bool = False
    on_front: bool = False

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name

    @cached_property
    def effect(self) -> Estimate | None:
        """Relocation difference: mean score with the evidence in the last third minus that with it
        in the first. Negative: evidence near the beginning scores higher."""
        rows = np.array([[value] for _, value in self.differences.values()])
        return estimate(rows, [document for document, _ in self.differences.values()])

    @property
    def rank_effect(self) -> Estimate | None:
        """Position effect on rank: nDCG@10 with the evidence first minus that with it last."""
        return None if self.positions is None else self.positions.effect.effect.difference

    @property
    def saliency_index(self) -> Estimate | None:
        """Primacy-recency index of the mean saliency curve, -1 (first third) to 1 (last third)."""
        return None if self.saliency is None else self.saliency.summary.primacy_recency_index

    @cached_property
    def _queries(self) -> tuple[list[float], list[str]]:
        """nDCG@10 of each held-out query and its document."""
        if self.ranked is None:
            return [], []
        scores = self.ranked.evaluation.per_query[NDCG].astype(np.float64)
        return scores.tolist(), [query.document for query in self.ranked.setup.queries]

    @cached_property
    def quality(self) -> Estimate | None:
        """nDCG@10 of the held-out queries."""
        scores, documents = self._queries
        return estimate(np.array(scores)[:, None], documents) if scores else None

    @cached_property
    def share(self) -> Estimate | None:
        """Share of the held-out documents' sentences that do not retrieve their document."""
        if not self.unretrieved:
            return None
        return unretrieved_share(self.unretrieved, "original", "sentence", TOP)

    def against(self, plain: DebiasSummary) -> Changes:
        """The paired changes against the plain model, over the pairs, queries and documents that
        both have."""
        both = [pair for pair in self.differences if pair in plain.differences]
        effect = paired_sizes(
            [plain.differences[pair][1] for pair in both],
            [self.differences[pair][1] for pair in both],
            [self.differences[pair][0] for pair in both],
            SCORE_MARGIN,
        )
        before = {ranks.document_id: ranks for ranks in plain.unretrieved}
        shares = [
            (old, new, ranks.document_id)
            for ranks in self.unretrieved
            if ranks.document_id in before
            and (new := _share(ranks)) is not None
            and (old := _share(before[ranks.document_id])) is not None
        ]
        quality = paired(plain._queries[0], *self._queries, MARGIN)
        share = paired(*_columns(shares), SHARE_MARGIN)
        return Changes(
            effect, self._rank_change(plain), quality, share, self._saliency_change(plain)
        )

    def _saliency_change(self, plain: DebiasSummary) -> Comparison | None:
        if self.saliency is None or plain.saliency is None:
            return None
        stored, before = self.saliency.stored, plain.saliency.stored
        row_of = {pair_id: row for row, pair_id in enumerate(before.pair_ids)}
        both = [
            (row_of[pair_id], row)
            for row, pair_id in enumerate(stored.pair_ids)
            if pair_id in row_of
        ]
        document_of = {pair.pair_id: pair.document for pair in self.point.corpus.pairs}
        return paired_indices(
            before.magnitudes[[old for old, _ in both]],
            stored.magnitudes[[new for _, new in both]],
            [document_of[stored.pair_ids[new]] for _, new in both],
        )

    def _rank_change(self, plain: DebiasSummary) -> Comparison | None:
        if self.positions is None or plain.positions is None:
            return None
        before = {query.pair.pair_id: query for query in plain.positions.queries}
        rows = [
            (
                _first_minus_last(before[query.pair.pair_id]),
                _first_minus_last(query),
                query.pair.document,
            )
            for query in self.positions.queries
            if query.pair.pair_id in before
        ]
        return paired_sizes(*_columns(rows), RANK_MARGIN)

    @property
    def recommendation(self) -> Recommendation | None:
        """Whether the change is recommended; None for the plain model."""
        return None if self.changes is None else self.changes.recommendation()


def _columns(
    rows: Sequence[tuple[float, float, str]],
) -> tuple[list[float], list[float], list[str]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _first_minus_last(query: QueryPositions) -> float:
    return float(query.gains[0] - query.gains[-1])


def _share(document: SentenceRanks) -> float | None:
    return document.share("original", "sentence", TOP)
