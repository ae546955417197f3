"""In-degrees and skewness compared with values by hand and scipy; what the control keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.hubs import (
    InDegrees,
    ShuffledInDegrees,
    control,
    in_degrees,
    retrieved,
    sentence_queries,
    shuffled_words,
    tied_at,
)
from poslens.attribution.evaluation.search import Ranking
from poslens.attribution.retrievers.lexical import terms_of
from poslens.attribution.text import words


def ranking(query: str, documents: str) -> Ranking:
    scores = np.arange(len(documents), 0, -1, dtype=np.float32)
    return Ranking(query, tuple(documents), scores, (None,) * len(documents))


def query(name: str, relevant: str = "") -> Query:
    return Query(name, name, "", None, dict.fromkeys(relevant, 1), {}, None, None)


QUERIES = (query("q1", "a"), query("q2", "b"), query("q3"))
RANKINGS = {"q1": ranking("q1", "abcd"), "q2": ranking("q2", "bacd"), "q3": ranking("q3", "cb")}


def degrees(seed: int, *, n: int = 60, k: int = 5, size: int = 40, each: int = 3) -> InDegrees:
    generator = np.random.default_rng(seed)
    weights = generator.gamma(1, size=size)
    tops = tuple(
        generator.choice(size, k, replace=False, p=weights / weights.sum()) for _ in range(n)
    )
    return InDegrees(tops, tuple(str(row // each) for row in range(n)), size)


def test_ties_at_the_cutoff_are_counted() -> None:
    scores = np.array([3, 2, 2, 2], dtype=np.float32)
    tied = Ranking("q1", tuple("abcd"), scores, (None,) * 4)
    # Ranks 1 and 2 without `a`: b and c, with equal scores.
    assert tied_at(tied, {"a"}, 1) and tied_at(tied, (), 2)
    assert not tied_at(tied, (), 1)  # a before b
    assert not tied_at(tied, {"a"}, 3)  # b, c and d all count
    assert in_degrees({"q1": tied}, (query("q1", "a"),), "abcd", 2).n_tied == 1


def test_in_degrees_computed_by_hand() -> None:
    assert retrieved(RANKINGS["q1"], {"a"}, 2) == ("b", "c")
    found = in_degrees(RANKINGS, QUERIES, "abcd", 2)
    # q1: b c; q2: a c; q3: c b.
    assert found.counts.tolist() == [1, 2, 3, 0]
    assert found.skewness is not None and found.never is not None
    assert found.skewness.value == pytest.approx(0, abs=1e-12)  # symmetric around 1.5
    assert found.never.value == 0.25
    assert found.groups == ("a", "b", "q3")
    assert (found.n_without, found.n_tied) == (0, 0)
    # Mean 2, squares 1 + 0 + 1 + 4, cubes -1 + 0 - 1 + 8: (6/4) / (6/4) ** 1.5.
    three = InDegrees(tuple(np.array(top) for top in ([0, 3], [1, 3], [1, 3], [2, 3])), "wxyz", 4)
    assert three.counts.tolist() == [1, 2, 1, 4]
    assert three.skewness is not None
    assert three.skewness.value == pytest.approx(6 / 4 / (6 / 4) ** 1.5)


def test_skewness_and_jackknife_against_scipy() -> None:
    found = degrees(1)
    assert found.skewness is not None and found.skewness.interval is not None
    assert found.skewness.value == pytest.approx(scipy.stats.skew(found.counts))
    without = [
        scipy.stats.skew(
            np.bincount(
                np.concatenate(
                    [t for t, g in zip(found.tops, found.groups, strict=True) if g != str(group)]
                ),
                minlength=40,
            )
        )
        for group in range(20)
    ]
    error = np.sqrt(19 / 20 * ((np.array(without) - np.mean(without)) ** 2).sum())
    reach = scipy.stats.t.ppf(0.975, 19) * error
    value = found.skewness.value
    assert found.skewness.interval == pytest.approx((value - reach, value + reach))
    assert (found.skewness.n, found.skewness.n_resampled) == (60, 20)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 30))
def test_the_sum_of_in_degrees_is_queries_times_k(seed: int, k: int, n: int) -> None:
    found = degrees(seed, n=n, k=k)
    assert found.counts.sum() == n * k
    order = np.random.default_rng(seed).permutation(n)
    mixed = InDegrees(
        tuple(found.tops[row] for row in order), tuple(found.groups[row] for row in order), 40
    )
    assert mixed.counts.tolist() == found.counts.tolist()
    assert found.skewness is not None and mixed.skewness is not None
    assert mixed.skewness.value == pytest.approx(found.skewness.value, abs=1e-9)
    if found.skewness.interval is not None:
        assert mixed.skewness.interval == pytest.approx(found.skewness.interval, abs=1e-9)


def test_random_retrieval_is_binomial() -> None:
    expected = scipy.stats.binom.stats(60, 5 / 40, moments="s")
    assert degrees(2).random_skewness == pytest.approx(float(expected))
    assert InDegrees((np.array([0, 1]),), ("x",), 2).random_skewness is None


def test_the_verdict_of_two_indexes_of_the_same_queries() -> None:
    even = InDegrees(tuple(np.arange(row, row + 5) % 40 for row in range(80)), tuple("ab" * 40), 40)
    groups = tuple(str(row // 2) for row in range(80))
    hub = InDegrees(
        tuple(np.array([0, *(np.arange(4) + 4 * row) % 39 + 1]) for row in range(80)), groups, 40
    )
    spread = InDegrees(
        tuple(
            np.random.default_rng(row).choice(40, 5, replace=False, p=np.arange(1, 41) / 820)
            for row in range(80)
        ),
        groups,
        40,
    )
    higher, lower, same = (
        one.minus(ShuffledInDegrees((other,) * 3))
        for one, other in ((hub, spread), (spread, hub), (hub, hub))
    )
    assert higher is not None and lower is not None and same is not None
    assert (higher.verdict, lower.verdict, same.verdict) == ("higher", "lower", "equivalent")
    assert higher.difference.value == pytest.approx(
        scipy.stats.skew(hub.counts) - scipy.stats.skew(spread.counts)
    )
    few = [InDegrees(one.tops[:9], tuple("abcdefghi"), 40) for one in (hub, spread)]
    undecided = few[0].minus(ShuffledInDegrees((few[1],)))
    assert undecided is not None and undecided.verdict == "too few documents"
    assert undecided.difference.interval is None and undecided.needed == 10
    # Each document is retrieved by the same number of queries, so there is no skewness.
    assert (
        even.skewness is None
        and InDegrees(even.tops, groups, 40).minus(ShuffledInDegrees((spread,))) is None
    )
    with pytest.raises(ValueError, match="other queries"):
        even.minus(ShuffledInDegrees((spread,)))


def test_the_interval_includes_how_much_random_orders_differ() -> None:
    """By hand: the variance of the mean of three orders is added to that of the jackknife, with
    Satterthwaite's degrees of freedom."""
    base, *orders = (degrees(seed) for seed in range(4))
    base = replace(base, groups=orders[0].groups)
    found = base.minus(ShuffledInDegrees(tuple(orders)))
    skewness = [float(scipy.stats.skew(one.counts)) for one in orders]
    assert found is not None and found.error is not None
    assert found.difference.value == pytest.approx(
        scipy.stats.skew(base.counts) - np.mean(skewness)
    )
    names = sorted(set(base.groups))
    without = []
    for left_out in names:
        rest = [row for row, name in enumerate(base.groups) if name != left_out]
        of_rest = [
            float(
                scipy.stats.skew(
                    np.bincount(np.concatenate([one.tops[row] for row in rest]), minlength=40)
                )
            )
            for one in (base, *orders)
        ]
        without.append(of_rest[0] - np.mean(of_rest[1:]))
    jackknife = (len(names) - 1) * np.var(without)
    of_orders = np.var(skewness, ddof=1) / 3
    assert found.error**2 == pytest.approx(jackknife + of_orders)
    freedom = found.error**4 / (jackknife**2 / (len(names) - 1) + of_orders**2 / 2)
    p = 2 * scipy.stats.t.sf(abs(found.difference.value) / found.error, freedom)
    assert found.p == pytest.approx(p)


# -- the control -----------------------------------------------------------------------------------

TEXT = "The old heron's nest (3.5 m) is here, at last. 汉字abc和def。 Wait!"


def test_the_control_permutes_words_and_nothing_else() -> None:
    found = shuffled_words(TEXT)
    assert found == shuffled_words(TEXT) != TEXT
    assert Counter(terms_of(found)) == Counter(terms_of(TEXT))
    kinds = [[any(map(str.isalnum, text[a:b])) for a, b in words(text)] for text in (TEXT, found)]
    assert kinds[0] == kinds[1]  # punctuation marks stay in the sequence where they were
    assert shuffled_words("- !") == "- !"
    assert len({shuffled_words(TEXT, order) for order in range(3)}) == 3


@given(st.text("ab é.,'-’ 3\n", max_size=40) | st.text("汉字。， ทก\n", max_size=40))
def test_the_control_keeps_all_words_of_any_text(text: str) -> None:
    assert Counter(terms_of(shuffled_words(text))) == Counter(terms_of(text))


def collection(*texts: str) -> Collection:
    documents = tuple(Document(str(n), text) for n, text in enumerate(texts))
    return Collection("mine", "mine", (), lambda: iter(documents))


def test_each_sentence_is_a_query_with_its_document_as_the_answer() -> None:
    whole = collection("One two three. Four five six! No.", "Seven eight nine ten.")
    found = sentence_queries(whole, 10)
    assert {one.text: tuple(one.relevant) for one in found.queries} == {
        "One two three.": ("0",),
        "Four five six!": ("0",),
        "Seven eight nine ten.": ("1",),
    }
    assert found.drawn == "3 sentences as queries"
    fewer = sentence_queries(whole, 2)
    assert [one.text for one in fewer.queries] == [one.text for one in found.queries][:2]
    with pytest.raises(UserError, match="has no sentences of 3 words or more"):
        sentence_queries(collection("No.", "Nor this."), 10)


def test_the_control_has_the_same_queries_and_shuffled_texts() -> None:
    whole = sentence_queries(collection("One two three four five. Six seven eight nine."), 5)
    shuffled = control(whole)
    assert [one.text for one in shuffled.queries] == [one.text for one in whole.queries]
    (before,), (after,) = whole.documents(), shuffled.documents()
    assert before.key == after.key and after.text == shuffled_words(before.text) != before.text
    assert shuffled.digest != whole.digest
    assert shuffled.drawn.endswith("words of each document in random order")


def test_queries_of_the_control_belong_to_the_document_of_their_evidence() -> None:
    """Not to the first relevant one, which may be missing from the corpus, or have no evidence."""
    whole = collection("One two three four five.", "Six seven eight nine ten.")
    keys = [document.key for document in whole.documents()]
    query = Query(
        "q",
        "seven",
        whole.name,
        None,
        dict.fromkeys(["absent", *keys], 1),
        dict.fromkeys(keys[1:], "pair"),
        0.5,
        evidence_pair="pair",
    )
    judged = replace(whole, queries=(query,))
    (asked,) = control(judged).queries
    assert asked.document == query.document == keys[1] and asked.evidence is None
