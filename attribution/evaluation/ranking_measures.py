"""Measures of rankings, for each query and on average.

Measures are ir_measures' (nDCG@10 with the grades as gains, as trec_eval computes it). Intervals of
S@10 are Agresti and Coull's (curves/proportions.py); all others resample documents, each with all
the queries that it answers (curves/bootstrap.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

import ir_measures
import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import LENGTH_BUCKETS, length_bucket
from poslens.attribution.curves.proportions import clustered_proportion, mean_share
from poslens.attribution.datasets.corpus import Collection, Query
from poslens.attribution.evaluation.evidence_profile import EvidenceProfile, evidence_profile
from poslens.attribution.evaluation.search import Ranking
from poslens.attribution.types import Array, as_array

NDCG, MRR, RECALL, SUCCESS = "nDCG@10", "MRR@10", "Recall@100", "S@10 per query"
MEASURES: Mapping[str, str] = {
    NDCG: "nDCG@10",
    MRR: "RR@10",
    RECALL: "R@100",
    SUCCESS: "Success@10",
}
"""The names of measures in tables, and their names in ir_measures."""

CUTOFFS = (5, 10, 20, 30, 50, 100)
CUTOFF_MEASURES: Mapping[str, str] = {
    **{f"Recall@{k}": f"R@{k}" for k in CUTOFFS},
    **{f"nDCG@{k}": f"nDCG@{k}" for k in CUTOFFS},
}
"""What position-aware benchmarks report for each group of queries (arXiv 2505.13950)."""

SUCCESS_OF_PAIRS = "S@10 per pair"
"""Success over pairs of a query and a document that answers it, as in MultiClaim: a query with
several answers counts once for each."""

TOP = 10


def measure(
    rankings: Sequence[Ranking], queries: Sequence[Query], measures: Mapping[str, str] = MEASURES
) -> dict[str, Array]:
    """Each of `measures` for each query, [n] in the order of `queries`.

    A query without a ranking has 0 in all of them. Documents count in the given order, whatever
    their scores: trec_eval would order ties differently.
    """
    rows = {query.query_id: row for row, query in enumerate(queries)}
    qrels = {query.query_id: dict(query.relevant) for query in queries}
    run = {
        ranking.query_id: {key: -float(rank) for rank, key in enumerate(ranking.document_ids)}
        for ranking in rankings
        if ranking.query_id in rows
    }
    values = {name: np.zeros(len(queries)) for name in measures}
    if run:
        names = {repr(ir_measures.parse_measure(m)): name for name, m in measures.items()}
        parsed = [ir_measures.parse_measure(m) for m in measures.values()]
        for metric in ir_measures.iter_calc(parsed, qrels, run):
            values[names[repr(metric.measure)]][rows[metric.query_id]] = metric.value
    return {name: as_array(array, (len(queries),), "a measure") for name, array in values.items()}


def depends_on_order(ranking: Ranking, query: Query) -> bool:
    """Whether documents with equal scores, of which at least one is in the top 10, differ in
    relevance, so that measures of the top depend on the order of the corpus."""
    ranked = zip(ranking.scores, ranking.document_ids, strict=True)
    n = 0
    for _, equal in groupby(ranked, key=itemgetter(0)):
        grades = [query.relevant.get(key, 0) for _, key in equal]
        if n < TOP and len(set(grades)) > 1:
            return True
        n += len(grades)
    return False


def mean_over_queries(values: NDArray[np.floating], documents: Sequence[Hashable]) -> Estimate:
    """The mean of a measure [n] in [0, 1] over queries; its interval resamples their `documents`
    [n].

    Raises:
        ValueError: no query, or a value is not finite.
    """
    mean = mean_share(values, documents)
    if mean is None:
        raise ValueError(f"no mean of {len(values)} queries")
    return mean


def success(values: NDArray[np.floating], queries: Sequence[Query]) -> Estimate:
    """The share of `queries` with a relevant document in the top 10, from a value [n] of 0 or 1 for
    each; queries of one document depend on each other.

    Raises:
        ValueError: no queries.
    """
    return clustered_proportion(values, [query.document for query in queries])


def success_of_pairs(rankings: Sequence[Ranking], queries: Sequence[Query]) -> Estimate:
    """The share of all relevant documents of `queries` that are in the top 10: S@10 of Pikuliak et
    al. (2023), section 4. The paper's interval assumes that pairs are independent; here, pairs of
    one document, and of one query, depend on each other.

    Raises:
        ValueError: no query has a relevant document.
    """
    tops = {ranking.query_id: set(ranking.document_ids[:TOP]) for ranking in rankings}
    pairs = [(query.query_id, document) for query in queries for document in query.relevant]
    retrieved = [document in tops.get(query_id, ()) for query_id, document in pairs]
    query_ids, documents = zip(*pairs, strict=True) if pairs else ((), ())
    return clustered_proportion(retrieved, documents, query_ids)


@dataclass(frozen=True, slots=True)
class SameLanguage:
    """Share of the top 10 that is in the query's language, and the share of the searched corpus
    that is; over the queries that have a language and at least one result."""

    share: Estimate
    expected: float


def same_language(
    rankings: Sequence[Ranking],
    collection: Collection,
    own_corpus: bool,
    queries: Sequence[Query] | None = None,
) -> SameLanguage | None:
    """The same-language bias of rankings of `queries`, by default all queries of the collection;
    None if the language of no query or of no document is known."""
    by_query = {ranking.query_id: ranking for ranking in rankings}
    totals, by_language = Counter[str](), Counter[tuple[str, str]]()
    for (part, language), n in collection.survey.languages.items():
        if language is not None:
            where = part if own_corpus else ""
            totals[where] += n
            by_language[where, language] += n
    shares, expected, documents = [], [], []
    for query in collection.queries if queries is None else queries:
        ranking, where = by_query.get(query.query_id), query.part if own_corpus else ""
        listed = ranking.languages[:TOP] if ranking else ()
        top = [language for language in listed if language is not None]
        if query.language is None or not top:
            continue
        shares.append(top.count(query.language) / len(top))
        expected.append(by_language[where, query.language] / totals[where])
        documents.append(query.document)
    if not shares:
        return None
    share = mean_over_queries(np.array(shares), documents)
    return SameLanguage(share, float(np.mean(expected)))


@dataclass(frozen=True)
class Evaluation:
    """Rankings of a collection's queries, measured.

    `per_query` contains each of MEASURES [n] in the order of the queries and, for a collection with
    groups, each of CUTOFF_MEASURES. `estimates` contains the means of MEASURES with intervals, and
    S@10 per pair. `n_missing` queries retrieved nothing and count as 0. `profile` is None without
    evidence; `buckets` contains only length buckets with queries. `read_whole` is the profile of
    the queries whose evidence the model reads whole: an effect of position there is not due to the
    context limit. It is None without such queries, or if it is unknown what the model reads.
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
    """Measure rankings of `queries`, by default all queries of the collection. `read` is the share
    of the evidence that the model read, by query id; it counts as unknown unless every query with
    evidence has one.

    Raises:
        UserError: a file of the corpus cannot be read.
    """
    queries = collection.queries if queries is None else queries
    more = CUTOFF_MEASURES if collection.groups else {}
    values = measure(rankings, queries, {**MEASURES, **more})
    answered = {ranking.query_id for ranking in rankings if ranking.document_ids}
    documents = [query.document for query in queries]
    estimates = {name: mean_over_queries(values[name], documents) for name in MEASURES}
    estimates[SUCCESS] = success(values[SUCCESS], queries)
    estimates[SUCCESS_OF_PAIRS] = success_of_pairs(rankings, queries)
    placed = {row: q.evidence for row, q in enumerate(queries) if q.evidence is not None}

    all_read = read is not None and all(queries[row].query_id in read for row in placed)
    shares = {row: read[queries[row].query_id] for row in placed} if read and all_read else {}

    def profile(rows: list[int]) -> EvidenceProfile | None:
        return evidence_profile(
            values[NDCG][rows],
            [placed[row] for row in rows],
            [documents[row] for row in rows],
            [shares[row] for row in rows] if shares else None,
        )

    bucket_of = [length_bucket(q.document_tokens) if q.document_tokens else "" for q in queries]
    buckets = {}
    for bucket in LENGTH_BUCKETS:
        of_bucket = [row for row in placed if bucket_of[row] == bucket]
        if (bucket_profile := profile(of_bucket)) is not None:
            buckets[bucket] = bucket_profile
    return Evaluation(
        model,
        len(queries),
        sum(query.query_id not in answered for query in queries),
        values,
        estimates,
        same_language(rankings, collection, own_corpus, queries),
        profile(list(placed)),
        buckets,
        profile([row for row in placed if shares[row] >= 1]) if shares else None,
    )
