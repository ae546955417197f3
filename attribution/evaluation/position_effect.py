"""Within-query position effect: does a document's rank depend on where its evidence is?

Each query is its own control. Its document is ranked with the evidence at several positions of its
own text (`interventions.relocation`), against the unchanged other documents of the corpus.
Differences between positions are caused by position, because queries, documents and competitors are
the same. PSI compares different queries instead, so a few hundred of them cannot tell a bias from
chance.

nDCG@10 here has one relevant document: 1 / log2(1 + rank), 0 past rank 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import (
    SEED,
    Estimate,
    Values,
    estimate,
    estimates,
    generator_for,
)
from poslens.attribution.curves.proportions import even_if_constant
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison, compared
from poslens.attribution.evaluation.evidence_profile import psi_of_bins
from poslens.attribution.interventions.relocation import Relocation, relocation_method
from poslens.attribution.text import overlapping, sentences
from poslens.attribution.types import EvidenceSpan, Method, TextPair

MARGIN = 0.02
"""Difference of nDCG@10 up to which two positions are equivalent."""

TOP = 10
_NULL = "null"
_SIMILAR = 1.5
"""A control sentence is at most this many times longer or shorter than the evidence."""


def position_ranks_method(positions: int) -> Method:
    """The name under which ranks are stored."""
    return Method("position_ranks", {**relocation_method(positions).params, "ties": "last"})


@dataclass(frozen=True, slots=True)
class PositionRanks:
    """Ranks [P] from 1 of a pair's document with its evidence at each position of the pair's
    relocation, among the other documents of a corpus, below those with equal scores: a model that
    scores all documents alike ranks none of them first."""

    pair_id: str
    ranks: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.ranks.ndim != 1 or not len(self.ranks) or (self.ranks < 1).any():
            raise ValueError("no ranks")


def null_pair(pair: TextPair) -> TextPair:
    """The pair with a random other sentence of its document marked instead of its evidence, of
    similar length where there is one: moving that sentence should not change the rank.

    Raises:
        UserError: the evidence has no words, or every sentence overlaps it.
    """
    assert pair.evidence is not None
    spans, span = sentences(pair.document, pair.language), pair.evidence
    touched = overlapping(spans, span)
    if not touched:
        raise UserError("The evidence has no words: mark a passage with words.")
    others = [other for i, other in enumerate(spans) if i not in touched]
    if not others:
        raise UserError("The evidence covers every sentence of the document.")
    length = sum(spans[i][1] - spans[i][0] for i in touched)

    def ratio(other: tuple[int, int]) -> float:
        size = other[1] - other[0]
        return max(size / length, length / size)

    similar = [other for other in others if ratio(other) <= _SIMILAR] or [min(others, key=ratio)]
    generator = generator_for(pair.pair_id)
    chosen = similar[int(generator.integers(len(similar)))]
    return replace(pair, pair_id=f"{pair.pair_id}#{_NULL}-{SEED}", evidence=EvidenceSpan(*chosen))


@dataclass(frozen=True, slots=True)
class QueryPositions:
    """One query at K positions: ranks [K] of its document. They are the positions of its
    relocation, spread evenly over the document, at which the model reads all of the evidence; some
    repeat if these are fewer than K. `whole` states whether the model reads the whole document."""

    pair: TextPair
    ranks: NDArray[np.int64]
    whole: bool

    @property
    def gains(self) -> Values:
        """nDCG@10 [K]."""
        return np.where(self.ranks <= TOP, 1 / np.log2(1.0 + self.ranks), 0.0)


def query_positions(
    pair: TextPair, relocation: Relocation, ranks: PositionRanks, positions: int
) -> QueryPositions | None:
    """A query at K positions; None if the model reads all of the evidence at fewer than two of
    those of the relocation."""
    read = np.flatnonzero(relocation.whole)
    if len(read) < 2 or len(ranks.ranks) != len(relocation.whole):
        return None
    spread = np.rint(np.arange(positions) * (len(read) - 1) / (positions - 1)).astype(np.int64)
    whole = relocation.read_share >= 1 and bool(relocation.whole.all())
    return QueryPositions(pair, ranks.ranks[read[spread]], whole)


@dataclass(frozen=True, slots=True)
class PositionEffect:
    """Means over the same `n` queries of `n_documents` documents at each of K positions.

    `ndcg`, `mrr` and `rank` [K] are nDCG@10, 1 / rank and rank; `deviations` [K] are nDCG@10 minus
    the query's own mean over positions, so their intervals show what position changes. `first`,
    `middle` and `last` are nDCG@10 with the evidence at the first, the middle and the last
    position; `effect` is first minus last, paired within the query. `thirds` are the means over the
    positions of each third, and `third_effect` their first minus their last. `psi` is
    1 - min / max of `ndcg`; it cannot be negative, so its interval is one-sided, from 0.
    """

    n: int
    n_documents: int
    ndcg: tuple[Estimate, ...]
    mrr: tuple[Estimate, ...]
    rank: tuple[Estimate, ...]
    deviations: tuple[Estimate, ...]
    middle: Estimate
    effect: Comparison
    thirds: tuple[Estimate, Estimate, Estimate]
    third_effect: Comparison
    psi: Estimate | None

    @property
    def first(self) -> Estimate:
        """nDCG@10 with the evidence first."""
        return self.ndcg[0]

    @property
    def last(self) -> Estimate:
        """nDCG@10 with the evidence last."""
        return self.ndcg[-1]

    @property
    def positions(self) -> tuple[float, ...]:
        """The K relative positions, 0 (first) to 1 (last)."""
        last = len(self.ndcg) - 1
        return tuple(k / last for k in range(last + 1))


def position_effect(
    queries: Sequence[QueryPositions], order_blind: bool = False
) -> PositionEffect | None:
    """How nDCG@10 depends on the position of the evidence; None without queries. For a model that
    is `order_blind`, equal ranks are no matter of chance, so few documents suffice for them."""
    if not queries:
        return None
    documents = [query.pair.document for query in queries]
    gains = np.array([query.gains for query in queries])
    ranks = np.array([query.ranks for query in queries], dtype=np.float64)
    k = gains.shape[1]
    thirds = [gains[:, part].mean(1) for part in third_parts(k)]
    centered = gains - gains.mean(1, keepdims=True)
    middles = gains[:, [(k - 1) // 2, k // 2]].mean(1)  # the mean of two if K is even
    rest = np.stack([middles, *thirds], axis=1)
    columns = np.concatenate([gains, 1.0 / ranks, ranks, centered, rest], axis=1)
    means = estimates(columns, documents)
    # nDCG@10 and reciprocal ranks, unlike ranks and centered values, are in [0, 1].
    for within in (slice(2 * k), slice(4 * k, None)):
        means[within] = map(even_if_constant, means[within])
    psi = estimate(gains, documents, psi_of_bins, kind="upper")
    if psi is not None and not order_blind:
        psi = even_if_constant(psi)
    effect, third_effect = (
        compared(differences[:, None], documents, MARGIN, largest=None if order_blind else 1.0)
        for differences in (first_minus_last(gains), thirds[0] - thirds[2])
    )
    assert effect is not None and third_effect is not None  # nDCG is finite
    first, middle, last = means[-3:]
    return PositionEffect(
        len(queries),
        len(set(documents)),
        tuple(means[:k]),
        tuple(means[k : 2 * k]),
        tuple(means[2 * k : 3 * k]),
        tuple(means[3 * k : 4 * k]),
        means[4 * k],
        effect,
        (first, middle, last),
        third_effect,
        psi,
    )


def first_minus_last(gains: Values) -> Values:
    """nDCG@10 [n] with the evidence first minus that with it last, from gains [n, K]."""
    return np.asarray(gains[:, 0] - gains[:, -1])


def third_parts(k: int) -> tuple[slice, slice, slice]:
    """Which of K positions are in the first, the middle and the last third."""
    at = np.arange(k) / (k - 1)
    start, stop = int((at < 1 / 3).sum()), int((at <= 2 / 3).sum())
    # With two positions, the middle third would be empty, so it has both.
    return slice(0, start), slice(start, stop) if stop > start else slice(0, k), slice(stop, k)
