"""The measures of one point on held-out documents, and their changes against the plain model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import Estimate, ratio
from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.debiasing.folder import Manifest
from poslens.attribution.evaluation.audit import TOP, SentenceRanks, share_row, unretrieved_share
from poslens.attribution.evaluation.comparison import (
    INDEX_MARGIN,
    SHARE_MARGIN,
    Comparison,
    adjusted_fields,
    paired,
    paired_statistics,
)
from poslens.attribution.evaluation.ranking_change import (
    Change,
    Quality,
    candidate,
    change,
    halves,
    quality,
)
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.evaluation.recommendation import MARGIN, Recommendation, recommendation
from poslens.attribution.evaluation.sizes import paired_sizes
from poslens.attribution.nouns import counted
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import DataSetCurve
from poslens.compute.provenance import ModelIdentity
from poslens.paired import ItemMeasure
from poslens.studies.cause.service import DataSetCause
from poslens.studies.debias.points import DebiasPoint
from poslens.studies.positions.summary import PositionSummary
from poslens.studies.ranking.service import Ranked


@dataclass(frozen=True)
class Changes:
    """Paired changes of measures of `DebiasSummary` against the plain model: in the sizes of the
    relocation difference (`effect`) and of the position effect on rank (`rank_effect`), in nDCG@10
    (`quality`), in the share of unretrieved sentences, in the saliency index, and, without
    training, in the harmonic mean of nDCG@10 over positions and in PSI. No recommendation depends
    on the saliency index, because a curve can flatten while position matters as much as before. A
    change is None if the data set does not allow it to be measured."""

    effect: Comparison | None = None
    rank_effect: Comparison | None = None
    quality: Comparison | None = None
    share: Comparison | None = None
    saliency_index: Comparison | None = None
    harmonic: Comparison | None = None
    psi: Comparison | None = None

    def recommendation(self) -> Recommendation:
        """Whether the changed model is recommended over the plain one."""
        bias = {
            "the size of the relocation difference": self.effect,
            "the size of the position effect on rank": self.rank_effect,
        }
        return recommendation(bias, self.quality)


NO_CHANGES = Changes()
CHANGED = tuple(field.name for field in fields(Changes))
"""The names of all changes."""

_qualities: LRUCache[Quality | None] = LRUCache(256)
_changes: LRUCache[Change | None] = LRUCache(256)


@dataclass(frozen=True)
class DebiasSummary:
    """The measures of one point. `differences` are relocation differences by pair: score with
    the evidence in the last third minus that in the first. `unretrieved` are the ranks of
    sentences of held-out documents, `positions` the ranks of relocated documents, and `saliency` is
    the mean saliency curve of held-out pairs. `plain` is the summary of the plain model, None
    for that model itself, and `changes` are relative to it. `test` is the test of the best
    calibration setting if nothing is trained. Measures that the data set does not allow are None or
    empty."""

    point: DebiasPoint
    model: ModelIdentity
    manifest: Manifest | None
    ranked: Ranked | None
    cause: DataSetCause | None
    differences: ItemMeasure
    unretrieved: tuple[SentenceRanks, ...]
    positions: PositionSummary | None = None
    saliency: DataSetCurve | None = None
    plain: DebiasSummary | None = None
    changes: Changes = NO_CHANGES
    recommended: bool = False
    on_front: bool | None = None
    test: HeldOutTest | None = None

    @property
    def trains(self) -> bool:
        """Whether a debiased model is among the compared ones."""
        return self.point.corpus.training is not None

    @property
    def tested(self) -> bool:
        """Whether it is the calibration setting that was tested on held-out queries."""
        return self.test is not None and self.test.name == self.name

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name

    @property
    def effect(self) -> Estimate | None:
        """Relocation difference: mean score with the evidence in the last third minus in the first.
        Negative: evidence near the beginning scores higher."""
        return None if self.cause is None else self.cause.last_minus_first

    @property
    def rank_effect(self) -> Estimate | None:
        """Position effect on rank: nDCG@10 with the evidence first minus last."""
        return None if self.positions is None else self.positions.effect.effect.difference

    @property
    def saliency_index(self) -> Estimate | None:
        """Primacy-recency index of the mean saliency curve, -1 (first third) to 1 (last third)."""
        return None if self.saliency is None else self.saliency.summary.primacy_recency_index

    @property
    def ranking(self) -> Quality | None:
        """nDCG@10 and its distribution over evidence positions; None if a model was trained, which
        leaves too few queries for PSI."""
        return None if self.trains or self.ranked is None else quality_of(self.ranked)

    @property
    def bias_and_quality(self) -> tuple[float | None, float | None]:
        """The size of the position bias (of the relocation difference, or PSI if nothing is
        trained) and nDCG@10, by which models are compared."""
        if (ranking := self.ranking) is not None:
            return ranking.psi, ranking.mean.value
        effect, quality = self.effect, self.quality
        return abs(effect.value) if effect else None, quality.value if quality else None

    @property
    def quality(self) -> Estimate | None:
        """nDCG@10 of the held-out queries."""
        return None if self.ranked is None else self.ranked.evaluation.estimates[NDCG]

    @cached_property
    def share(self) -> Estimate | None:
        """Share of the held-out documents' sentences that do not retrieve their document."""
        if not self.unretrieved:
            return None
        return unretrieved_share(self.unretrieved, "original", "sentence", TOP)

    def against(self, plain: DebiasSummary) -> Changes:
        """The paired changes against the plain model, over the pairs, queries and documents that
        both have."""
        # The weights of a model that was not trained are those of the plain one.
        untrained = self.manifest is not None and not self.manifest.steps
        largest = None if untrained and self.point.calibration is None else 1.0
        rank_effect = None
        if plain.positions is not None and self.positions is not None:
            before, after = plain.positions.by_query, self.positions.by_query
            rank_effect = _size_change(before, after, None if largest is None else after.largest)
        changes = Changes(
            effect=_size_change(plain.differences, self.differences),
            rank_effect=rank_effect,
            share=self._share_change(plain, largest),
            saliency_index=self._saliency_change(plain),
        )
        if self.ranked is None or plain.ranked is None:
            return changes
        if self.trains:
            old, new = (each.evaluation.per_query[NDCG] for each in (plain.ranked, self.ranked))
            documents = [query.document for query in self.ranked.setup.queries]
            return replace(changes, quality=paired(old, new, documents, MARGIN, largest))
        ranking = ranking_change(plain.ranked, self.ranked)
        if ranking is None:
            return changes
        return replace(changes, quality=ranking.mean, harmonic=ranking.harmonic, psi=ranking.psi)

    def _share_change(self, plain: DebiasSummary, largest: float | None) -> Comparison | None:
        old, new = (
            {
                ranks.document_id: row
                for ranks in summary.unretrieved
                if (row := share_row(ranks, "original", "sentence", TOP))[1]
            }
            for summary in (plain, self)
        )
        both = [document for document in new if document in old]
        before, after = (np.array([shares[document] for document in both]) for shares in (old, new))
        if not both:
            return None
        return paired_statistics(
            before, after, None, SHARE_MARGIN, ratio, counts=after[:, 1], largest=largest
        )

    def _saliency_change(self, plain: DebiasSummary) -> Comparison | None:
        if self.saliency is None or plain.saliency is None:
            return None
        stored, before = self.saliency.stored, plain.saliency.stored
        rows, rows_before = stored.rows_of_both(before)
        document_of = {pair.pair_id: pair.document for pair in self.point.corpus.pairs}
        return paired_statistics(
            before.magnitudes[rows_before],
            stored.magnitudes[rows],
            [document_of[stored.pair_ids[row]] for row in rows.tolist()],
            INDEX_MARGIN,
            primacy_recency_index,
        )

    @property
    def why_fewer(self) -> str:
        """Why an undecided change in position bias has fewer documents than are held out, or why no
        change was measured, as a sentence; empty otherwise, and if pairs failed for reasons of
        their own."""
        changes, corpus = self.changes, self.point.corpus
        n, of_bias = len(corpus.held_out), (changes.effect, changes.rank_effect)
        if not corpus.n_movable:
            return "No held-out document has evidence that can be moved."
        if not corpus.pairs:
            return "The number of pairs whose evidence is moved is set to 0."
        measured = [change for change in of_bias if change is not None]
        if not measured and self.cause is None:
            return ""
        if measured and not any(
            change.verdict == "too few documents" and change.difference.n_resampled < n
            for change in measured
        ):
            return ""
        moved = len({pair.document for pair in corpus.pairs})
        thirds, twice = len(set(self.differences.documents.values())), ""
        if self.positions:
            ranked = len(set(self.positions.by_query.documents.values()))
            twice = f"at two or more positions in {ranked:,} of them and "
        return (
            f"In {moved:,} of {counted(n, 'held-out document')}, evidence was moved; {self.name} "
            f"reads it in full {twice}in both the first and the last third in {thirds:,}."
        )

    @property
    def recommendation(self) -> Recommendation | None:
        """Whether the change is recommended; None for the plain model, and for settings other than
        the tested one."""
        if not self.trains:
            return self.test.recommendation if self.test and self.tested else None
        return None if self.plain is None else self.changes.recommendation()


def quality_of(ranked: Ranked, rows: NDArray[np.bool_] | None = None) -> Quality | None:
    """nDCG@10 of rankings and its distribution over evidence positions, for the queries whose
    evidence position is known, or only those of them in `rows`; None without any."""
    scores, positions, documents = _with_evidence(ranked, rows)
    key = scores.tobytes(), tuple(positions), tuple(documents)
    return _qualities.get(key, lambda: quality(scores, positions, documents))


def ranking_change(
    before: Ranked, after: Ranked, rows: NDArray[np.bool_] | None = None
) -> Change | None:
    """The change between two rankings of the same queries: see `quality_of`."""
    old, positions, documents = _with_evidence(before, rows)
    new, _, _ = _with_evidence(after, rows)
    key = old.tobytes(), new.tobytes(), tuple(positions), tuple(documents)
    return _changes.get(key, lambda: change(old, new, positions, documents))


def _with_evidence(
    ranked: Ranked, rows: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float64], list[float], list[str]]:
    """nDCG@10, evidence position and document of each query whose evidence position is known."""
    queries = ranked.setup.queries
    chosen = [number for number, query in enumerate(queries) if query.evidence is not None]
    if rows is not None:
        chosen = [number for number, is_in in zip(chosen, rows, strict=True) if is_in]
    scores = ranked.evaluation.per_query[NDCG][chosen].astype(np.float64)
    positions = [position for n in chosen if (position := queries[n].evidence) is not None]
    return scores, positions, [queries[n].document for n in chosen]


# -- a calibration setting, selected and tested ----------------------------------------------------


@dataclass(frozen=True)
class HeldOutTest:
    """The version (`name`) with the highest harmonic mean on one half of the documents, with its
    calibration as text (`setting`), tested on the queries of the other half: measures of the plain
    model `before` and of that version `after`. Without changes and recommendation, the plain model
    itself was selected. `selected_on` are the ids of the queries that it was selected on."""

    name: str
    setting: str
    selected_on: frozenset[str]
    before: Quality
    after: Quality
    changes: Changes
    recommendation: Recommendation | None


def held_out_test(summaries: Sequence[DebiasSummary]) -> HeldOutTest | None:
    """The test of the best version of a model; the plain one comes first in `summaries`. None while
    versions are missing, and if all queries are about one document."""
    rankings = [summary.ranked for summary in summaries if summary.ranked is not None]
    if not rankings or len(rankings) < summaries[0].point.versions:
        return None
    plain = rankings[0]
    _, positions, documents = _with_evidence(plain, None)
    half = halves(documents)
    if not half.any() or half.all():
        return None
    selection = [_with_evidence(ranked, half)[0] for ranked in rankings]
    best = candidate(selection, np.array(positions)[half].tolist())
    before, after = quality_of(plain, ~half), quality_of(rankings[best], ~half)
    assert before is not None and after is not None  # there are queries
    queries = [query.query_id for query in plain.setup.queries if query.evidence is not None]
    selected_on = frozenset(np.array(queries)[half].tolist())
    change = ranking_change(plain, rankings[best], ~half) if best else None
    calibration = summaries[best].point.calibration
    chosen = (summaries[best].name, calibration.words if calibration else "", selected_on)
    if change is None:
        return HeldOutTest(*chosen, before, after, NO_CHANGES, None)
    of_ranking = Changes(quality=change.mean, harmonic=change.harmonic, psi=change.psi)
    (changes,) = adjusted_fields([of_ranking], CHANGED)
    advice = setting_advice(changes, summaries[0].ranking, summaries[best].ranking)
    return HeldOutTest(*chosen, before, after, changes, advice)


def setting_advice(
    held_out: Changes, plain: Quality | None, changed: Quality | None
) -> Recommendation:
    """Whether a calibration setting is recommended over the plain model: `held_out` are its changes
    on the queries that it was not selected on, `plain` and `changed` are over all queries."""
    advice = recommendation(
        {"PSI": held_out.psi}, held_out.quality, {"the harmonic mean": held_out.harmonic}
    )
    if advice.recommended and plain and changed and changed.worse_on_both(plain):
        return Recommendation(False, f"Over all queries it is worse in both PSI and {NDCG}.")
    return advice


def _size_change(
    before: ItemMeasure, after: ItemMeasure, largest: float | None = None
) -> Comparison | None:
    """`paired_sizes` of the items of both; None without any."""
    if (shared := after.shared_with(before)) is None:
        return None
    rows, old, documents = shared
    return paired_sizes(old[:, 0], rows[:, 0], documents, after.margin, largest)
