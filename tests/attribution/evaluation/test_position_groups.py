"""Measures of groups of queries, against plain loops over the queries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from poslens.attribution.curves.bootstrap import N_BOOTSTRAP, SEED
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.datasets.types import Groups
from poslens.attribution.evaluation.position_groups import group_rows, grouped, harmonic_estimate
from poslens.attribution.evaluation.ranking_measures import CUTOFFS, NDCG, evaluate
from poslens.attribution.evaluation.search import Ranking
from tests.support.plain_bootstrap import plain_bca

GROUPS = Groups("Mine", "place", ("early", "middle", "late"))
N_DOCUMENTS = 150
N_QUERIES = 90


def made() -> tuple[Collection, list[Ranking], list[int | None]]:
    """Queries with one document each, at a known rank or not found; three share a document."""
    draw = np.random.default_rng(7)
    documents = [Document(f"d{n}", f"text {n}") for n in range(N_DOCUMENTS)]
    queries, rankings, ranks = [], [], []
    for n in range(N_QUERIES):
        groups = [("early",), ("middle",), ("early", "middle"), ()][n % 4]
        right = f"d{n // 3}"
        rank = None if n % 11 == 0 else int(draw.integers(1, 101 if n % 2 else 12))
        others = [one.document_id for one in documents if one.document_id != right][:100]
        if rank is not None:
            others.insert(rank - 1, right)
        queries.append(
            Query(f"q{n}", f"query {n}", "", None, {right: 1}, {}, None, None, groups=groups)
        )
        scores = -np.arange(100, dtype=np.float32)
        rankings.append(Ranking(f"q{n}", tuple(others[:100]), scores, (None,) * 100))
        ranks.append(rank)
    found = Collection("x", "x", tuple(queries), lambda: iter(documents), groups=GROUPS)
    return found, rankings, ranks


def test_measures_of_each_group_equal_a_plain_loop() -> None:
    collection, rankings, ranks = made()
    evaluation = evaluate("M", rankings, collection)
    found = grouped(evaluation.per_query, collection.queries, GROUPS)
    assert found is not None
    means = {}
    for group in found.measures:
        own = [ranks[n] for n, q in enumerate(collection.queries) if group.name in q.groups]
        assert group.n == len(own)
        for k in CUTOFFS if own else ():
            recall = [rank is not None and rank <= k for rank in own]
            gains = [1 / math.log2(r + 1) if r is not None and r <= k else 0.0 for r in own]
            assert group.measures[f"Recall@{k}"].value == pytest.approx(sum(recall) / len(own))
            assert group.measures[f"nDCG@{k}"].value == pytest.approx(
                sum(gains) / len(own), abs=1e-6
            )
        if own:
            means[group.name] = group.measures[NDCG].value
    assert list(means) == ["early", "middle"] and found.measures[2].measures == {}
    assert found.n_outside == sum(not query.groups for query in collection.queries)
    low, high = min(means.values()), max(means.values())
    assert found.profile.psi == pytest.approx(1 - low / high)
    assert found.harmonic.value == pytest.approx(2 / (1 / low + 1 / high))
    assert (
        found.profile.psi_under_permutation is not None and found.profile.psi_under_permutation > 0
    )
    assert found.profile.means[2] is None and found.profile.counts[2] == 0


@pytest.mark.parametrize(("scores", "mean"), [([0.0, 0.8], 0), ([1.0, 1.0], 1)])
def test_a_harmonic_mean_that_resampling_cannot_vary_has_no_interval(
    scores: list[float], mean: int
) -> None:
    """One group scores 0 in all documents, or all groups score 1."""
    rows = group_rows(np.tile(scores, 12), np.tile(np.eye(2), (12, 1)))
    harmonic = harmonic_estimate(rows, [n // 2 for n in range(24)])
    assert harmonic is not None and (harmonic.value, harmonic.interval) == (mean, None)
    varied = harmonic_estimate(np.add(rows, [0.1, 0, 0, 0]), [n // 2 for n in range(24)])
    assert varied is not None and varied.interval is not None


def test_intervals_resample_documents_with_all_their_queries() -> None:
    """Compared with a loop that draws documents one by one with the bootstrap's random numbers."""
    collection, rankings, _ = made()
    evaluation = evaluate("M", rankings, collection)
    found = grouped(evaluation.per_query, collection.queries, GROUPS)
    assert found is not None
    early = found.measures[0]
    assert early.measures[NDCG].resampled == "documents"
    assert early.measures[NDCG].n_resampled == early.n_documents < early.n
    by_document: dict[str, list[float]] = {}
    for query, score in zip(collection.queries, evaluation.per_query[NDCG], strict=True):
        if "early" in query.groups:
            by_document.setdefault(next(iter(query.relevant)), []).append(float(score))
    listed = list(by_document.values())
    draw, means = np.random.default_rng(SEED), []
    for _ in range(N_BOOTSTRAP):
        drawn = draw.integers(0, len(listed), len(listed), np.int32)
        means.append(np.mean([score for at in drawn for score in listed[at]]))
    without = [
        np.mean([score for other in listed if other is not one for score in other])
        for one in listed
    ]
    sizes = [len(scores) for scores in listed]
    low, high = plain_bca(early.measures[NDCG].value, means, without, sizes)
    assert early.measures[NDCG].low == pytest.approx(low, abs=1e-9)
    assert early.measures[NDCG].high == pytest.approx(high, abs=1e-9)


def test_the_share_of_evidence_read_is_reported_per_group() -> None:
    collection, rankings, _ = made()
    evaluation = evaluate("M", rankings, collection)
    read = {query.query_id: n % 2 / 1 for n, query in enumerate(collection.queries)}
    found = grouped(evaluation.per_query, collection.queries, GROUPS, read)
    assert found is not None
    own = [read[q.query_id] for q in collection.queries if "early" in q.groups]
    assert found.profile.read[0] == pytest.approx(sum(own) / len(own))
    assert found.profile.read[2] is None
    unknown = grouped(evaluation.per_query, collection.queries, GROUPS, {"q0": 1.0})
    assert unknown is not None and unknown.profile.read == (None, None, None)


def test_a_group_without_queries_has_no_result() -> None:
    collection, rankings, _ = made()
    evaluation = evaluate("M", rankings, collection)
    other = Groups("Other", "place", ("nowhere",))
    assert grouped(evaluation.per_query, collection.queries, other) is None
