"""The paired t-tests: values by hand, SciPy, orientation, and undefined t."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_tests import (
    COLDER_TESTS,
    BiasResult,
    DocumentPair,
    PairScores,
    adjusted,
    paired_test,
)
from poslens.attribution.types import TextPair


def scored(*pairs: tuple[float, float]) -> list[PairScores]:
    return [PairScores(first, second) for first, second in pairs]


def test_t_computed_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard deviation 1, standard error 1/sqrt(3). With two
    # degrees of freedom p = 1 - t / sqrt(t^2 + 2) and the 97.5% point is 4.302653.
    found = paired_test("brevity", scored((2, 1), (4, 2), (6, 3)))
    t = 2 * np.sqrt(3)
    assert found.t == pytest.approx(t) and found.p == pytest.approx(1 - t / np.sqrt(t**2 + 2))
    assert found.difference == pytest.approx(2) and found.effect_size == pytest.approx(2)
    assert found.low == pytest.approx(2 - 4.302653 / np.sqrt(3), abs=1e-6)
    assert found.high == pytest.approx(2 + 4.302653 / np.sqrt(3), abs=1e-6)
    assert (found.mean_first, found.mean_second, found.n) == (4, 2, 3)
    assert found.share_first == 1 and found.share_second == found.resistance == 0
    assert found.remarks == (
        "Only 3 documents: the interval is wide and t is not robust below 10.",
    )
    assert found.t_interval == pytest.approx((t - 4.302653, t + 4.302653), abs=1e-6)


@pytest.mark.parametrize(
    ("mean", "std", "t", "p"),
    [
        (0.0117139211, 0.0722134933, 2.5648027796, 0.0109105768),  # Contriever
        (0.6203851104, 2.0774743557, 4.7216714254, 0.000003908),  # RetroMAE MSMARCO FT
    ],
)
def test_published_results_of_the_position_test(
    mean: float, std: float, t: float, p: float
) -> None:
    """Mean and standard deviation of 250 differences as published by the authors (position_df.json
    in their repository) determine t and p; the individual values are arbitrary."""
    values = np.random.default_rng(0).normal(size=250)
    differences = mean + std * (values - values.mean()) / values.std(ddof=1)
    found = paired_test("position", scored(*[(5 + d, 5) for d in differences.tolist()]))
    assert found.t == pytest.approx(t, rel=1e-6) and found.p == pytest.approx(p, rel=1e-3)


@given(st.integers(2, 40), st.integers(0, 10_000))
def test_t_equals_scipys_and_changes_sign_when_documents_are_swapped(n: int, seed: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, n))
    found = paired_test("literal", scored(*zip(first.tolist(), second.tolist(), strict=True)))
    wanted = stats.ttest_rel(first, second)
    # An equivalent test: one sample of differences against zero.
    other = stats.ttest_1samp(first - second, 0)
    assert found.t == pytest.approx(wanted.statistic) == pytest.approx(other.statistic)
    assert found.p == pytest.approx(other.pvalue)
    assert found.effect_size == pytest.approx(wanted.statistic / np.sqrt(n))
    turned = paired_test("literal", scored(*zip(second.tolist(), first.tolist(), strict=True)))
    assert turned.t == pytest.approx(-wanted.statistic)
    assert (turned.low, turned.high) == pytest.approx((-(found.high or 0), -(found.low or 0)))
    low, high = found.t_interval or (0, 0)
    assert (low > 0 or high < 0) == ((found.p or 1) < 0.05)


MTEB_PREFERS = {
    "foil": "doc2",
    "poison": "doc2",
    "answer_importance": "doc1",
    "brevity_bias": "doc2",
    "literal_bias": "doc2",
    "position_bias": "doc2",
    "repetition_bias": "doc2",
}
"""`_PREFERRED_DOC` of mteb 2.26.24, mteb/tasks/reranking/eng/colder_reranking.py."""


@pytest.mark.parametrize("subset", MTEB_PREFERS)
def test_both_shares_are_given_and_resistance_equals_mtebs(subset: str) -> None:
    # d1 scores higher in 7 pairs, d2 in 2; 1 is a tie.
    assert set(COLDER_TESTS) == {name.removesuffix("_bias") for name in MTEB_PREFERS}
    test = subset.removesuffix("_bias")
    found = paired_test(test, scored(*[(2, 1)] * 5, *[(3, 1)] * 2, *[(1, 2)] * 2, (1, 1)))
    assert found.share_first == pytest.approx(0.7)
    assert found.resistance == pytest.approx(0.7 if MTEB_PREFERS[subset] == "doc1" else 0.2)
    assert (found.t or 0) > 0 and not found.remarks


def test_differences_without_variance_have_no_t() -> None:
    tied = paired_test("position", scored(*[(0.5, 0.5)] * 12))
    assert tied.t is tied.p is tied.effect_size is tied.t_interval is None
    assert (tied.difference, tied.low, tied.high) == (0, 0, 0)
    assert tied.share_first == tied.resistance == 0
    assert tied.remarks == (
        "d1 and d2 score the same in every pair: the model ignores the difference.",
    )
    constant = paired_test("position", scored(*[(i + 0.25, i) for i in range(12)]))
    assert constant.t is None and constant.difference == pytest.approx(0.25)
    assert constant.remarks == ("Every pair differs by +0.25: without variance, t is undefined.",)


def test_differences_within_rounding_are_ties() -> None:
    rng = np.random.default_rng(0)
    noisy = [(0.4 + e, 0.4) for e in rng.normal(scale=4e-8, size=20).tolist()]
    found = paired_test("position", scored(*noisy))
    assert found.t is None and found.difference == 0 and found.share_first == 0
    assert PairScores(0.4, 0.4 - 2e-6).difference > 0


@pytest.mark.parametrize(("n", "sentence"), [(0, "0 documents: a"), (1, "1 document: a")])
def test_too_few_pairs(n: int, sentence: str) -> None:
    found = paired_test("brevity", scored(*[(2, 1)] * n))
    assert found.t is None and found.remarks[0].startswith(f"{sentence} paired t-test needs")
    assert found.difference == (1 if n else None)


def test_ten_pairs_are_enough_and_nine_are_too_few() -> None:
    rng = np.random.default_rng(1)
    pairs = scored(*rng.normal(size=(10, 2)).tolist())
    assert not paired_test("brevity", pairs).remarks
    assert "Only 9 documents" in paired_test("brevity", pairs[:9]).remarks[0]


def test_identical_documents_are_counted_or_refused() -> None:
    found = paired_test("brevity", scored((2, 1), (4, 2)), n_identical=3)
    assert found.n == 2 and found.remarks[0] == "3 pairs with identical documents excluded."
    with pytest.raises(UserError, match="Brevity: both documents of every pair are identical"):
        paired_test("brevity", [], n_identical=1)
    one = TextPair("1", "q", "a")
    assert DocumentPair("i", one, TextPair("2", "q", "a"), "d").identical
    assert not DocumentPair("i", one, TextPair("2", "q", "b"), "d").identical
    with pytest.raises(ValueError, match="two queries"):
        DocumentPair("i", one, TextPair("2", "other", "b"), "d")


def test_truncated_documents_are_counted() -> None:
    pairs = [PairScores(i, 2.0 * i * i, truncated=i > 9) for i in range(12)]
    found = paired_test("position", pairs)
    assert found.n_truncated == 2
    assert "In 2 of 12 pairs, a document exceeds the context limit" in found.remarks[0]


def test_pairs_of_one_document_are_one_difference() -> None:
    """The t-test is SciPy's on the documents' mean differences, whatever their pairs."""
    rng = np.random.default_rng(3)
    first = np.repeat(rng.normal(0.2, 1, 12), 5) + rng.normal(0, 0.1, 60)
    groups = [f"d{i // 5}" for i in range(60)]
    pairs = scored(*[(value, 0.0) for value in first.tolist()])
    found = paired_test("position", pairs, groups=groups)
    wanted = stats.ttest_1samp(first.reshape(12, 5).mean(1), 0)
    assert (found.n, found.n_documents) == (60, 12)
    assert found.t == pytest.approx(wanted.statistic) and found.p == pytest.approx(wanted.pvalue)
    # Treated as independent, the same pairs would more than double t.
    alone = paired_test("position", pairs)
    assert alone.n_documents == 60 and abs(alone.t or 0) > 2 * abs(found.t or 0)
    assert found.share_first == alone.share_first
    few = paired_test("position", pairs, groups=[f"d{i % 9}" for i in range(60)])
    assert "Only 9 documents" in few.remarks[0]


def test_pairs_with_truncated_evidence_are_excluded() -> None:
    rng = np.random.default_rng(4)
    whole = scored(*rng.normal(size=(12, 2)).tolist())
    cut = [PairScores(0.5, 0.1, truncated=True, read=share) for share in (0.0, 0.4, 0.999)]
    found = paired_test("position", [*whole, *cut])
    plain = paired_test("position", whole)
    assert (found.n, found.n_unread, found.lost) == (12, 3, pytest.approx(0.4))
    assert (found.t, found.difference, found.share_first) == (
        plain.t,
        plain.difference,
        plain.share_first,
    )
    assert "3 pairs excluded" in found.remarks[0] and "+0.4000" in found.remarks[0]
    assert plain.n_unread == 0 and plain.lost is None
    only = paired_test("position", cut)
    assert only.n == 0 and only.difference is None and only.lost == pytest.approx(0.4)


def test_a_non_finite_score_is_refused() -> None:
    with pytest.raises(UserError, match="not a finite number"):
        PairScores(float("nan"), 1)


def test_results_without_p_are_left_out_of_the_adjustment() -> None:
    def result(p: float | None) -> BiasResult:
        return BiasResult("foil", 12, 12, 0, 0, *[None] * 6, p, *[None] * 3)  # type: ignore[arg-type]

    assert adjusted([result(0.01), result(None), result(0.04)]) == [0.02, None, 0.04]
