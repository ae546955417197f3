"""What rankings are worth: measures of each query, and how they depend on the evidence's place.

Measures are ir_measures' (nDCG@10 with the grades as gains, as trec_eval computes it); PSI is
PosIR's; intervals of proportions are Agresti and Coull's (1998, "Approximate is better than
'exact'"), all others percentile bootstraps over queries: a query is a draw of its own, whatever
document answers it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import ir_measures
import numpy as np
from numpy.typing import NDArray

from attribution.curves.bootstrap import SEED, Estimate, estimate
from attribution.curves.positions import LENGTH_BUCKETS, length_bucket
from attribution.datasets.corpus import Collection, Query
from attribution.errors import UserError
from attribution.evaluation.search import Ranking
from attribution.types import Array, as_array

NDCG, MRR, RECALL, SUCCESS = "nDCG@10", "MRR@10", "Recall@100", "S@10 per query"
MEASURES: Mapping[str, str] = {
    NDCG: "nDCG@10",
    MRR: "RR@10",
    RECALL: "R@100",
    SUCCESS: "Success@10",
}
"""Names as tables show them, and ir_measures'."""

CUTOFFS = (5, 10, 20, 30, 50, 100)
CUTOFF_MEASURES: Mapping[str, str] = {
    **{f"Recall@{k}": f"R@{k}" for k in CUTOFFS},
    **{f"nDCG@{k}": f"nDCG@{k}" for k in CUTOFFS},
}
"""What position-aware benchmarks report of each group of queries (arXiv 2505.13950)."""

SUCCESS_OF_PAIRS = "S@10 per pair"
"""Of pairs of a query and a document that answers it, as MultiClaim counts; a query with several
answers counts as often."""

N_EVIDENCE_BINS = 20
N_SHUFFLES = 999
_KEPT = 1000
"""Orders of up to so many queries are kept, 2 MB of them: models are measured on the same ones."""
TOP = 10
_Z = 1.959963984540054


def measure(
    rankings: Sequence[Ranking],
    queries: Sequence[Query],
    measures: Mapping[str, str] = MEASURES,
) -> dict[str, Array]:
    """Each of `measures` of each query, [n] in the order of `queries`.

    A query without a ranking has 0 in all of them. Documents count in the order they are given in,
    whatever their scores: trec_eval's own order among equals would be another.
    """
    rows = {query.query_id: row for row, query in enumerate(queries)}
    qrels = [
        ir_measures.Qrel(query.query_id, key, relevance)
        for query in queries
        for key, relevance in query.relevant.items()
    ]
    run = [
        ir_measures.ScoredDoc(one.query_id, key, -float(rank))
        for one in rankings
        if one.query_id in rows
        for rank, key in enumerate(one.document_ids)
    ]
    values = {name: np.zeros(len(queries)) for name in measures}
    if run:
        names = {repr(ir_measures.parse_measure(m)): name for name, m in measures.items()}
        wanted = [ir_measures.parse_measure(m) for m in measures.values()]
        for found in ir_measures.iter_calc(wanted, qrels, run):
            values[names[repr(found.measure)]][rows[found.query_id]] = found.value
    return {name: as_array(one, (len(queries),), "a measure") for name, one in values.items()}


def agresti_coull(successes: int, n: int) -> Estimate:
    """A proportion with its 95% Agresti-Coull interval, kept within [0, 1].

    With n' = n + z^2 and p' = (successes + z^2 / 2) / n' the interval is
    p' +- z sqrt(p' (1 - p') / n').

    Raises:
        ValueError: not 0 <= successes <= n, or n = 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}")
    total = n + _Z**2
    middle = (successes + _Z**2 / 2) / total
    half = _Z * math.sqrt(middle * (1 - middle) / total)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Estimate(successes / n, low, high, n, resampled="")


def _over_queries(values: NDArray[np.floating]) -> Estimate:
    """The mean of a measure [n] with its interval over queries."""
    found = estimate(np.asarray(values, dtype=np.float64)[:, None], resampled="queries")
    assert found is not None  # there are queries, and measures are finite
    return found


def success_of_pairs(rankings: Sequence[Ranking], queries: Sequence[Query]) -> Estimate:
    """The share of all relevant documents of `queries` that stand in the top 10, with its 95%
    Agresti-Coull interval: S@10 of Pikuliak et al. (2023), section 4. The interval takes pairs to
    be independent, as theirs does.

    Raises:
        ValueError: no query has a relevant document.
    """
    tops = {one.query_id: set(one.document_ids[:TOP]) for one in rankings}
    found = sum(len(tops.get(query.query_id, set()) & set(query.relevant)) for query in queries)
    return agresti_coull(found, sum(len(query.relevant) for query in queries))


@dataclass(frozen=True, slots=True)
class EvidenceProfile:
    """nDCG@10 over bins: 20 equal ones of the evidence's relative position (PosIR's cut: bin b
    holds b / 20 < r <= (b + 1) / 20, the first one r = 0 too), or a benchmark's groups of queries.

    `means` [bins] has None for bins without a query, `counts` [bins] their queries. `psi` is
    1 - min / max over the filled bins, None where all are 0 or only one is filled. It cannot be
    negative, so few queries a bin raise it without any bias: `psi_by_chance` is its mean over 999
    shuffles of the positions among the same queries, `p` the share that reached `psi` (with the
    data itself among them). A bootstrap would only add the same noise again, so there is none.
    `mean` is over queries; `mean_of_bins`, over filled bins, is what PosIR publishes for a length
    bucket. `read` [bins] is the mean share of the evidence that the model read in each bin, None
    where that is not known: a bin falls behind if its evidence stands behind the model's limit.
    """

    means: tuple[float | None, ...]
    counts: tuple[int, ...]
    psi: float | None
    psi_by_chance: float | None
    p: float | None
    mean: float
    read: tuple[float | None, ...] = (None,) * N_EVIDENCE_BINS

    @property
    def n(self) -> int:
        """Queries whose evidence has a place, counted in each of their bins."""
        return sum(self.counts)

    @property
    def n_empty(self) -> int:
        """Bins that hold no query."""
        return sum(count == 0 for count in self.counts)

    @property
    def mean_read(self) -> float | None:
        """Mean share of the evidence that was read, over queries."""
        known = [(r, n) for r, n in zip(self.read, self.counts, strict=True) if r is not None]
        return sum(r * n for r, n in known) / self.n if known else None

    @property
    def mean_of_bins(self) -> float:
        """Mean over the filled bins."""
        return float(np.mean([mean for mean in self.means if mean is not None]))


def evidence_bin(position: float) -> int:
    """The bin, 0 to 19, of a relative position in [0, 1]."""
    return min(N_EVIDENCE_BINS - 1, max(0, math.ceil(position * N_EVIDENCE_BINS - 1e-9) - 1))


def evidence_profile(
    values: NDArray[np.floating],
    positions: Sequence[float],
    read: Sequence[float] | None = None,
) -> EvidenceProfile | None:
    """How nDCG@10 [n] depends on the evidence's relative position [n]; None of no query. `read` [n]
    are the shares of the evidence that the model read, where they are known."""
    if not len(values):
        return None
    member = np.zeros((len(values), N_EVIDENCE_BINS))
    member[np.arange(len(values)), [evidence_bin(position) for position in positions]] = 1.0
    return profile_over(values, member, read)


def profile_over(
    values: NDArray[np.floating],
    member: NDArray[np.float64],
    read: Sequence[float] | None = None,
) -> EvidenceProfile:
    """How nDCG@10 [n] depends on the bin: `member` [n, bins] is 1 where a query counts in one.
    There is at least one query; `read` as for `evidence_profile`."""
    scores = np.asarray(values, dtype=np.float64)
    counts = member.sum(0)
    sums = scores @ member
    means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    psi = float(psi_of_bins(means[None])[0]) if (counts > 0).sum() > 1 else np.nan
    chance, p = None, None
    if np.isfinite(psi):
        by_chance = np.concatenate(
            [psi_of_bins(_ratio(some @ member, counts[None])) for some in _shuffled(scores)]
        )
        chance = float(by_chance.mean())
        p = float(1 + (by_chance >= psi - 1e-12).sum()) / (1 + N_SHUFFLES)
    return EvidenceProfile(
        tuple(None if np.isnan(mean) else float(mean) for mean in means),
        tuple(int(count) for count in counts),
        psi if np.isfinite(psi) else None,
        chance,
        p,
        float(scores.mean()),
        _by_bin(member, read),
    )


def _shuffled(scores: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """N_SHUFFLES orders of scores [n] by lot (seeded), in portions [m, n] of 64 MiB at most."""
    if len(scores) <= _KEPT:
        yield scores[_orders(len(scores))]
        return
    generator = np.random.default_rng(SEED)
    at_once = max(1, 8_000_000 // len(scores))
    for start in range(0, N_SHUFFLES, at_once):
        n = min(at_once, N_SHUFFLES - start)
        yield np.array([generator.permutation(scores) for _ in range(n)])


@lru_cache(maxsize=16)
def _orders(n: int) -> NDArray[np.uint16]:
    """N_SHUFFLES orders of n places by lot (seeded) [N_SHUFFLES, n]: what is drawn depends on
    nothing else. Read-only."""
    generator = np.random.default_rng(SEED)
    places = np.arange(n, dtype=np.uint16)
    found = np.array([generator.permutation(places) for _ in range(N_SHUFFLES)])
    found.flags.writeable = False
    return found


def _by_bin(member: NDArray[np.float64], read: Sequence[float] | None) -> tuple[float | None, ...]:
    """Mean of `read` [n] in each bin."""
    shares = np.asarray([] if read is None else read, dtype=np.float64)
    return tuple(
        float(shares[one > 0].mean()) if len(shares) and one.any() else None for one in member.T
    )


def _ratio(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    counts = np.broadcast_to(counts, sums.shape)
    means: NDArray[np.float64] = np.divide(
        sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0
    )
    return means


def psi_of_bins(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 - min / max of each row [r, bins]; NaN where the largest mean is 0."""
    low, high = np.nanmin(means, axis=1), np.nanmax(means, axis=1)
    index: NDArray[np.float64] = 1 - np.divide(
        low, high, out=np.full(len(low), np.nan), where=high > 0
    )
    return index


@dataclass(frozen=True, slots=True)
class SameLanguage:
    """Share of the top 10 that is in the query's language, and the share of the searched corpus
    that is; over the `n` queries whose language is known and that found anything."""

    share: Estimate
    expected: float
    n: int


def same_language(
    rankings: Sequence[Ranking],
    collection: Collection,
    own_corpus: bool,
    queries: Sequence[Query] | None = None,
) -> SameLanguage | None:
    """The same-language bias of rankings of `queries`, else of all the collection's; None where no
    query or no document tells its language."""
    by_query = {one.query_id: one for one in rankings}
    counts = collection.survey.languages
    totals: dict[str, int] = {}
    own: dict[tuple[str, str], int] = {}
    for (part, language), n in counts.items():
        where = part if own_corpus else ""
        if language is not None:
            totals[where] = totals.get(where, 0) + n
            own[where, language] = own.get((where, language), 0) + n
    shares, expected = [], []
    for query in collection.queries if queries is None else queries:
        ranking, where = by_query.get(query.query_id), query.part if own_corpus else ""
        top = [one for one in ranking.languages[:TOP] if one is not None] if ranking else []
        if query.language is None or not top:
            continue
        shares.append(sum(one == query.language for one in top) / len(top))
        expected.append(own.get((where, query.language), 0) / totals[where])
    if not shares:
        return None
    return SameLanguage(_over_queries(np.array(shares)), float(np.mean(expected)), len(shares))


@dataclass(frozen=True)
class Evaluation:
    """Rankings of a collection's queries, measured.

    `per_query` holds each measure [n] in the order of the queries measured, and of a collection
    with groups those of CUTOFF_MEASURES; `estimates` the former's means with intervals, and S@10
    of pairs. `n_missing` queries found nothing and count as 0. `profile` is None without evidence,
    `buckets` holds only length buckets that have queries. `read_whole` is the profile of the
    queries whose evidence the model reads whole: what depends on the place there does not depend
    on the model's limit. None where what it reads is not known, or there are none.
    """

    model: str
    n: int
    n_missing: int
    per_query: Mapping[str, Array]
    estimates: Mapping[str, Estimate]
    language: SameLanguage | None
    profile: EvidenceProfile | None
    buckets: Mapping[str, EvidenceProfile] = field(default_factory=dict)
    read_whole: EvidenceProfile | None = None


def evaluate(
    model: str,
    rankings: Sequence[Ranking],
    collection: Collection,
    *,
    own_corpus: bool = False,
    read: Mapping[str, float] | None = None,
    queries: Sequence[Query] | None = None,
) -> Evaluation:
    """Measure rankings of `queries`, else of all the collection's. `read` is the share of the
    evidence that the model read, by query id; it is taken to be unknown unless every query with
    evidence has one.

    Raises:
        UserError: a document's file cannot be read.
    """
    queries = collection.queries if queries is None else queries
    more = CUTOFF_MEASURES if collection.groups else {}
    values = measure(rankings, queries, {**MEASURES, **more})
    found = {one.query_id for one in rankings if one.document_ids}
    estimates = {name: _over_queries(values[name]) for name in MEASURES}
    estimates[SUCCESS] = agresti_coull(int(values[SUCCESS].sum()), len(queries))
    estimates[SUCCESS_OF_PAIRS] = success_of_pairs(rankings, queries)
    placed = [row for row, query in enumerate(queries) if query.evidence is not None]

    known = read is not None and all(queries[row].query_id in read for row in placed)
    shares = {row: read[queries[row].query_id] for row in placed} if read and known else {}

    def profile(rows: Sequence[int]) -> EvidenceProfile | None:
        return evidence_profile(
            values[NDCG][list(rows)],
            [_place(queries[row]) for row in rows],
            [shares[row] for row in rows] if shares else None,
        )

    buckets = {}
    for bucket in LENGTH_BUCKETS:
        of_bucket = [row for row in placed if _bucket(queries[row]) == bucket]
        if (one := profile(of_bucket)) is not None:
            buckets[bucket] = one
    return Evaluation(
        model,
        len(queries),
        sum(query.query_id not in found for query in queries),
        values,
        estimates,
        same_language(rankings, collection, own_corpus, queries),
        profile(placed),
        buckets,
        profile([row for row in placed if shares[row] >= 1]) if shares else None,
    )


def _place(query: Query) -> float:
    if query.evidence is None:
        raise UserError(f"{query.query_id} has no evidence.")
    return query.evidence


def _bucket(query: Query) -> str:
    return length_bucket(query.document_tokens) if query.document_tokens else ""
