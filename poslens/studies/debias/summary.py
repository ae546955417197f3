"""What was measured of one point on the held-out half, and what changed against the plain model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.debiasing.folder import Manifest
from poslens.attribution.evaluation.audit import TOP, SentenceRanks, unretrieved_share
from poslens.attribution.evaluation.paired_change import (
    Debiased,
    change_of_mean,
    change_of_size,
    judge,
)
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.compute.provenance import ModelIdentity
from poslens.studies.cause.service import DataSetCause
from poslens.studies.debias.points import DebiasPoint
from poslens.studies.ranking.service import Ranked


@dataclass(frozen=True)
class DebiasSummary:
    """One point. `differences` are relocation differences by pair: (document, score with the
    evidence in the last third minus that in the first). `unretrieved` are the ranks of the
    sentences of held-out documents. `plain` is the summary of the model as it is, None for that
    itself. Each part is None or empty where the data set cannot tell it."""

    point: DebiasPoint
    model: ModelIdentity
    manifest: Manifest | None
    ranked: Ranked | None
    cause: DataSetCause | None
    differences: Mapping[str, tuple[str, float]]
    unretrieved: tuple[SentenceRanks, ...]
    plain: DebiasSummary | None = None
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

    @cached_property
    def effect_change(self) -> Estimate | None:
        """Change of its size against the plain model, over the pairs that both have."""
        if self.plain is None:
            return None
        both = [pair for pair in self.differences if pair in self.plain.differences]
        return change_of_size(
            [self.plain.differences[pair][1] for pair in both],
            [self.differences[pair][1] for pair in both],
            [self.differences[pair][0] for pair in both],
        )

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
    def quality_change(self) -> Estimate | None:
        """Its change against the plain model, query by query."""
        if self.plain is None or self.ranked is None:
            return None
        return change_of_mean(self.plain._queries[0], *self._queries)

    @cached_property
    def share(self) -> Estimate | None:
        """Share of the held-out documents' sentences that do not retrieve their document."""
        if not self.unretrieved:
            return None
        return unretrieved_share(self.unretrieved, "original", "sentence", TOP)

    @cached_property
    def share_change(self) -> Estimate | None:
        """Its change against the plain model, document by document: mean of the documents'."""
        if self.plain is None:
            return None
        before = {one.document_id: _share(one) for one in self.plain.unretrieved}
        both = [one for one in self.unretrieved if one.document_id in before]
        return change_of_mean(
            [before[one.document_id] for one in both],
            [_share(one) for one in both],
            [one.document_id for one in both],
        )

    @cached_property
    def judgement(self) -> Debiased | None:
        """Whether the change is recommended; None for the plain model."""
        return None if self.plain is None else judge(self.effect_change, self.quality_change)


def _share(document: SentenceRanks) -> float:
    return float(np.nanmean(document.unretrieved("original", "sentence", TOP)))
