"""Measures by hand, Agresti-Coull by its formula, and resampling of documents."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from poslens.attribution.curves.proportions import agresti_coull, clustered_proportion
from poslens.attribution.datasets import from_pairs
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.evaluation.ranking_measures import (
    MRR,
    NDCG,
    RECALL,
    SUCCESS,
    SUCCESS_OF_PAIRS,
    depends_on_order,
    evaluate,
    mean_over_queries,
    measure,
    same_language,
    success_of_pairs,
)
from poslens.attribution.evaluation.search import Ranking
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import EvidenceSpan, TextPair


def query(name: str, relevant: dict[str, int], language: str | None = None, **fields) -> Query:
    known = {"evidence": None, "document_tokens": None, "part": ""} | fields
    return Query(query_id=name, text=name, language=language, relevant=relevant, pairs={}, **known)


def ranking(name: str, *keys: str, languages: tuple[str | None, ...] = ()) -> Ranking:
    return Ranking(name, keys, np.zeros(len(keys)), languages or (None,) * len(keys))


def collection(queries: list[Query], documents: list[Document] = []) -> Collection:  # noqa: B006
    return Collection("toy", "Toy", tuple(queries), lambda: iter(documents))


def test_measures_computed_by_hand() -> None:
    queries = [
        query("first", {"a": 1}),
        query("third", {"a": 1}),
        query("eleventh", {"a": 1}),
        query("graded", {"a": 1, "b": 3}),
        query("missing", {"a": 1, "b": 1}),
        query("half", {"a": 1, "b": 1}),
    ]
    rest = [f"x{i}" for i in range(10)]
    found = measure(
        [
            ranking("first", "a", "x"),
            ranking("third", "x", "y", "a"),
            ranking("eleventh", *rest, "a"),
            ranking("graded", "a", "b"),
            ranking("half", "x", "b"),
            ranking("not asked", "a"),
        ],
        queries,
    )
    graded = (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))
    half = (1 / math.log2(3)) / (1 + 1 / math.log2(3))
    assert found[NDCG] == pytest.approx([1, 1 / math.log2(4), 0, graded, 0, half])
    assert found[MRR] == pytest.approx([1, 1 / 3, 0, 1, 0, 1 / 2])
    assert found[RECALL] == pytest.approx([1, 1, 1, 1, 0, 0.5])
    assert found[SUCCESS] == pytest.approx([1, 1, 0, 1, 0, 1])


def test_equal_scores_keep_the_order_given() -> None:
    # trec_eval alone would put b and z before a.
    for keys, expected in ((("a", "b", "z"), 1), (("z", "b", "a"), 1 / 3)):
        found = measure([ranking("q", *keys)], [query("q", {"a": 1})])
        assert found[MRR] == pytest.approx([expected])
        assert found[NDCG] == pytest.approx([1 / math.log2(1 / expected + 1)])


@pytest.mark.parametrize(
    ("scores", "grades", "depends"),
    [
        ((1, 1), (1, 0), True),
        ((1, 1), (1, 1), False),
        ((1, 1), (2, 1), True),
        ((2, 1), (1, 0), False),
        ((*range(10, -1, -1), 0), (0,) * 11 + (1,), False),
        ((*range(10, 0, -1), 1), (0,) * 10 + (1,), True),
    ],
    ids=["tied", "both relevant", "other grades", "apart", "below the top 10", "at rank 10"],
)
def test_equal_scores_of_different_relevance_in_the_top_10_depend_on_order(
    scores: tuple[int, ...], grades: tuple[int, ...], depends: bool
) -> None:
    keys = tuple(map(str, range(len(scores))))
    ranked = Ranking("q", keys, np.array(scores), (None,) * len(scores))
    relevant = {key: grade for key, grade in zip(keys, grades, strict=True) if grade}
    assert depends_on_order(ranked, query("q", relevant)) == depends


def test_measures_are_zero_if_nothing_is_found() -> None:
    found = evaluate("m", [], collection([query("q", {"a": 1})]))
    assert found.n == found.n_missing == 1
    assert {one.value for one in found.estimates.values()} == {0.0}
    assert found.profile is None and found.language is None


@given(st.integers(1, 400), st.data())
def test_agresti_coull_solves_its_own_equation(n: int, data: st.DataObject) -> None:
    x = data.draw(st.integers(0, n))
    found = agresti_coull(x, n)
    z = 1.959963984540054
    # "Add two successes and two failures" (z^2 / 2 = 1.92 of each), then Wald's interval.
    middle = (x + z * z / 2) / (n + z * z)
    half = z * math.sqrt(middle * (1 - middle) / (n + z * z))
    assert found.value == x / n and 0 <= found.low <= found.value <= found.high <= 1
    assert found.low == pytest.approx(max(0, middle - half), abs=1e-12)
    assert found.high == pytest.approx(min(1, middle + half), abs=1e-12)


def test_the_agresti_coull_interval_contains_wilsons() -> None:
    # Same mid-point as Wilson's score interval and never shorter (Brown, Cai and DasGupta 2001).
    from scipy.stats import binomtest

    for x, n in ((1, 10), (5, 10), (81, 263), (40, 40)):
        found, wilson = agresti_coull(x, n), binomtest(x, n).proportion_ci(method="wilson")
        assert found.low <= wilson.low + 1e-12 and wilson.high <= found.high + 1e-12
    # Newcombe (1998) gives 0.2553 to 0.3662 for Wilson's interval of 81 in 263.
    found = agresti_coull(81, 263)
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=2e-4)
    with pytest.raises(ValueError):
        agresti_coull(1, 0)


def test_trials_of_one_document_count_as_often_as_their_standard_error_implies() -> None:
    """Nine of ten documents succeed in all five trials. Over documents, the variance is
    0.09 / 9, over trials 0.09 / 49, so 50 trials tell as much as 50 * 9 / 49 = 9.2; fewer by the
    squared ratio of t's quantiles, because the variance of ten documents is uncertain."""
    documents = [n // 5 for n in range(50)]
    found = clustered_proportion([n >= 5 for n in range(50)], documents)
    uncertain = (stdtrit(9, 0.975) / stdtrit(49, 0.975)) ** 2
    expected = agresti_coull(45, 50, 50 * 9 / 49 / uncertain)
    assert (found.value, found.n) == (0.9, 50)
    assert found.interval == pytest.approx(expected.interval)
    # Independent trials, and trials without a failure.
    assert clustered_proportion([n >= 5 for n in range(50)], range(50)) == agresti_coull(45, 50)
    assert clustered_proportion([1] * 50, documents).interval == agresti_coull(10, 10).interval
    # One document tells as much as one trial.
    single = clustered_proportion([0, 1] * 5, ["d"] * 10)
    assert single.interval == agresti_coull(5, 10, 1).interval


def test_trials_can_depend_on_each_other_in_two_ways() -> None:
    """Half of the documents succeed for all queries, so variances over both are added, and
    queries, which are all alike, add none."""
    documents = [n // 4 for n in range(40)]
    queries = [n % 4 for n in range(40)]
    by_document = [n % 2 for n in documents]
    both = clustered_proportion(by_document, documents, queries)
    assert both.interval == pytest.approx(clustered_proportion(by_document, documents).interval)
    # Each cell on its own: as wide as the wider one.
    generator = np.random.default_rng(5)
    cells = generator.integers(0, 2, 40)
    sides = [clustered_proportion(cells, documents), clustered_proportion(cells, queries)]
    widths = [
        found.high - found.low
        for found in (*sides, clustered_proportion(cells, documents, queries))
    ]
    assert widths[2] >= max(widths[:2]) - 1e-12


@pytest.mark.parametrize("sizes", [[5] * 20, [5] * 5, [40] * 2 + [2] * 8])
def test_intervals_of_clustered_proportions_contain_the_true_share(sizes: list[int]) -> None:
    """Shares of documents that vary as Beta(2, 2): a formula for independent queries contains the
    true 0.5 in about 80% of draws, and in fewer if a few documents have most of the queries."""
    generator, hits = np.random.default_rng(6), np.zeros(2)
    documents = np.repeat(np.arange(len(sizes)), sizes).tolist()
    n = len(documents)
    for _ in range(300):
        values = generator.random(n) < np.repeat(generator.beta(2, 2, len(sizes)), sizes)
        for k, found in enumerate(
            (clustered_proportion(values, documents), agresti_coull(int(values.sum()), n))
        ):
            hits[k] += found.low <= 0.5 <= found.high
    clustered, independent = hits / 300
    assert clustered >= 0.93 and independent <= 0.87, hits


def test_same_language_share_and_the_share_expected_from_the_corpus() -> None:
    documents = [
        Document(f"d{i}", "text", "p" if i < 4 else "r", "eng" if i < 3 else "pol")
        for i in range(8)
    ]
    queries = [
        query("e", {"d0": 1}, "eng", part="p"),
        query("p", {"d0": 1}, "pol", part="r"),
        query("unknown", {"d0": 1}),
    ]
    known = [
        ranking("e", "d0", "d3", languages=("eng", "pol")),
        ranking("p", "d4", "d0", "d1", "d2", languages=("pol", "eng", "eng", None)),
    ]
    found = same_language(known, collection(queries, documents), False)
    assert found is not None and found.share.n == 2
    assert found.share.value == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found.expected == pytest.approx((3 / 8 + 5 / 8) / 2)
    own = same_language(known, collection(queries, documents), True)
    assert own is not None and own.expected == pytest.approx((3 / 4 + 1) / 2)


def test_a_collection_can_be_made_of_pairs_alone() -> None:
    pairs = (
        TextPair("1", "what melts", "Ice melts.", language="eng"),
        TextPair("2", "what stays", "Stone stays."),
        TextPair("3", "what melts", "Snow melts."),
        TextPair("4", "what is hard", "Stone stays."),
    )
    found = from_pairs(DataSet("d", "D", Pairs(pairs)))
    assert [q.query_id for q in found.queries] == ["1", "2", "4"]
    assert found.queries[0].relevant == {"1": 1, "3": 1}
    assert found.queries[2].pairs == {"2": "4"}
    assert [d.key for d in found.documents()] == ["1", "2", "3"]
    assert found.texts(["3"]) == {"3": "Snow melts."}


def test_intervals_resample_documents_with_all_their_queries() -> None:
    """Twelve documents answer five queries each, and all queries of a document have the same
    result."""
    queries, ranked = [], []
    for n in range(60):
        own, right = f"q{n}", f"d{n // 5}"
        queries.append(query(own, {right: 1}))
        ranked.append(ranking(own, right, "x") if n // 5 % 2 else ranking(own, "x", right))
    found = evaluate("m", ranked, collection(queries))
    for name in (NDCG, MRR, RECALL):
        one = found.estimates[name]
        # Every query retrieves its document, so the interval of recall is from a formula.
        formula = "Agresti-Coull" if name == RECALL else ""
        assert (one.n, one.n_resampled, one.formula) == (60, 12, formula)
        # The five queries add nothing to one of them.
        alone = evaluate("m", ranked[::5], collection(queries[::5])).estimates[name]
        assert one.interval == pytest.approx(alone.interval)


def test_a_querys_document_contains_its_evidence() -> None:
    several = query("q", {"a": 1, "b": 1})
    assert several.document == "a"
    judged = replace(several, pairs={"a": "q a", "b": "q b"}, evidence_pair="q b")
    assert judged.document == "b"
    assert query("q", {}).document == "q"


def test_evaluation_by_bucket() -> None:
    queries = [
        query("a", {"a": 1}, evidence=0.1, document_tokens=100),
        query("b", {"b": 1}, evidence=0.9, document_tokens=100),
        query("c", {"c": 1}, evidence=0.9, document_tokens=2000),
        query("d", {"d": 1}, evidence=0.3),
        query("e", {"e": 1}),
    ]
    found = evaluate("m", [ranking(q, q) for q in "abce"], collection(queries))
    assert (found.n, found.n_missing) == (5, 1)
    assert found.profile is not None and found.profile.n == 4 and found.profile.psi == 1
    assert {name: one.n for name, one in found.buckets.items()} == {"Q1": 2, "Q4": 1}
    assert found.buckets["Q1"].psi == 0 and found.buckets["Q4"].psi is None
    assert found.estimates[SUCCESS].value == 0.8
    assert found.estimates[SUCCESS].low == agresti_coull(4, 5).low
    assert found.estimates[SUCCESS_OF_PAIRS].value == 0.8


def test_measures_of_selected_queries_equal_those_of_a_collection_of_them() -> None:
    queries = [
        query("a", {"a": 1}, evidence=0.1, document_tokens=100),
        query("b", {"x": 1}, evidence=0.9, document_tokens=2000),
        query("c", {"c": 1}, evidence=0.7),
    ]
    ranked = [ranking(q, q) for q in "abc"]
    kept = [queries[0], queries[2]]
    found = evaluate("m", ranked, collection(queries), queries=kept)
    alone = evaluate("m", [ranked[0], ranked[2]], collection(kept))
    assert found.n == 2 and found.estimates == alone.estimates
    assert found.profile == alone.profile and found.buckets.keys() == {"Q1"}
    assert found.estimates[NDCG].value == 1 and found.language == alone.language


def test_success_counts_every_pair_of_a_query() -> None:
    """MultiClaim's evaluate.py uses one rank for each pair, so a post with three claims counts
    three times; here one of them is in the top 10."""
    queries = [
        query("one", {"a": 1}),
        query("three", {"a": 1, "b": 2, "c": 1}),
        query("none", {"z": 1}),
    ]
    rest = [f"x{i}" for i in range(9)]
    ranked = [ranking("one", "a"), ranking("three", *rest, "b", "a", "c"), ranking("other", "z")]
    found = success_of_pairs(ranked, queries)
    retrieved, documents = [1, 0, 1, 0, 0], "aabcz"
    asked = ["one", "three", "three", "three", "none"]
    assert found.value == 2 / 5 and found == clustered_proportion(retrieved, documents, asked)
    evaluated = evaluate("m", ranked[:2], collection(queries))
    assert evaluated.estimates[SUCCESS].value == 2 / 3
    assert evaluated.estimates[SUCCESS_OF_PAIRS] == found


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_values_of_few_documents_leave_room_for_others(value: float) -> None:
    documents = [f"d{n}" for n in range(15)]
    mean = mean_over_queries(np.full(15, value), documents)
    assert mean.interval == agresti_coull(int(15 * value), 15).interval
    # Two queries of a document add no document.
    assert mean_over_queries(np.full(30, value), documents * 2).interval == mean.interval
    assert mean_over_queries(np.full(9, value), documents[:9]).interval is None
    half = mean_over_queries(np.full(15, 0.5), documents)
    assert half.interval == (0.5, 0.5), "no share, so the formula says nothing about it"


@pytest.mark.parametrize("with_evidence", [False, True])
def test_the_order_of_judgments_does_not_matter(with_evidence: bool) -> None:
    """20 queries with three relevant documents each, most of them also relevant to others."""
    lot = np.random.default_rng(5)
    keys = [f"d{i:02}" for i in range(24)]
    judged = [
        (f"q{i:02}", str(key)) for i in range(20) for key in lot.choice(keys, 3, replace=False)
    ]
    text = {key: f"{'Filler. ' * int(lot.integers(1, 9))}Fact {key}. More." for key in keys}

    def evaluated(rows: list[tuple[str, str]]):
        pairs, ids = [], {}
        for name, key in rows:
            start = text[key].index("Fact")
            span = EvidenceSpan(start, start + 8) if with_evidence else None
            pairs.append(TextPair(f"{name}/{key}", f"what is {name}", text[key], span))
            ids[pairs[-1].pair_id] = name, key
        read = from_pairs(DataSet("toy", "Toy", Pairs(pairs), ids=ids))
        ranked = [ranking(name, *np.random.default_rng(n).permutation(keys)) for n, name in names]
        units = {each.query_id: (each.document, each.evidence) for each in read.queries}
        return units, evaluate("m", ranked, read)

    names = list(enumerate(dict.fromkeys(name for name, _ in judged)))
    units, expected = evaluated(judged)
    assert len({document for document, _ in units.values()}) >= 10
    assert (expected.profile is None) != with_evidence
    for seed in range(3):
        # Queries keep their order, which the draws of the bootstrap follow.
        order = np.random.default_rng(seed).permutation(len(judged))
        rows = sorted((judged[i] for i in order), key=lambda row: row[0])
        found_units, found = evaluated(rows)
        assert found_units == units
        assert found.estimates[NDCG].interval
        for name, each in found.estimates.items():
            other = expected.estimates[name]
            assert each.interval == pytest.approx(other.interval, rel=1e-12)
            assert replace(each, low=None, high=None) == replace(other, low=None, high=None)
        if found.profile is not None and expected.profile is not None:
            assert found.profile.psi == expected.profile.psi
        anywhere_units, anywhere = evaluated([judged[i] for i in order])
        assert anywhere_units == units
        for name, each in anywhere.estimates.items():
            assert each.value == pytest.approx(expected.estimates[name].value)
            assert each.n_resampled == expected.estimates[name].n_resampled
