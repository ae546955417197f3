"""Paired comparisons: p by scipy, verdicts of made-up differences, Holm, and the number needed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from poslens.attribution.curves.bootstrap import Estimate, intervals, p_value, standard_error
from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.evaluation.comparison import (
    INDEX_MARGIN,
    Comparison,
    adjusted,
    compared,
    holm,
    judged,
    paired,
    paired_by_document,
    paired_statistics,
)
from poslens.attribution.evaluation.comparison_words import (
    change_in_words,
    p_in_words,
    size_in_words,
)

RNG = np.random.default_rng(5)


def normal(mean: float, spread: float, n: int) -> np.ndarray:
    """Differences [n, 1] with exactly this mean and standard deviation."""
    drawn = RNG.normal(size=n)
    return (mean + spread * (drawn - drawn.mean()) / drawn.std(ddof=1))[:, None]


def test_p_of_single_queries_is_that_of_scipys_paired_t_test() -> None:
    for mean in (0.0, 0.2, 0.35, 1.5):
        first = RNG.normal(0, 1, 40)
        second = first - normal(mean, 1, 40)[:, 0]
        found = compared((first - second)[:, None], None, 0.1)
        assert found is not None and found.p is not None
        assert found.p == pytest.approx(stats.ttest_rel(first, second).pvalue)
        again = p_value(RNG.permutation(first - second)[:, None])
        assert again == pytest.approx(found.p), "the order of queries does not matter"


def test_p_of_a_statistic_that_is_not_smooth_fits_its_interval() -> None:
    for mean in np.linspace(0.1, 0.6, 26):
        values = np.exp(normal(0, 1, 30)) - 1.9 + mean  # skewed
        for level in (0.8, 0.9, 0.95, 0.99):
            ends = intervals(values, level=level, kind="percentile")
            p = p_value(values, kind="percentile")
            assert ends is not None and p is not None
            excluded = ends[0][0] > 0 or ends[1][0] < 0
            assert excluded == (p < 1 - level) or abs(p - (1 - level)) < 0.005


def test_differences_of_few_queries_are_seldom_significant_without_an_effect() -> None:
    generator, hits = np.random.default_rng(3), 0
    for _ in range(400):
        signs = generator.choice([-1, 1], 30) * generator.choice([0.13, 0.37, 0.5], 30)
        values = np.where(generator.random(30) < 1 / 8, signs, 0.0)
        hits += (p_value(values[:, None]) or 1) < 0.05
    assert hits / 400 < 0.05


def test_a_ratio_is_tested_with_the_jackknifes_error() -> None:
    """Close to a t-test of the residuals, on which a ratio of means depends (the delta method)."""
    sizes = RNG.integers(1, 9, 60).astype(float)
    rows = np.stack([0.1 * sizes + RNG.normal(0, 1, 60), sizes], axis=1)
    ratio = rows[:, 0].sum() / rows[:, 1].sum()
    residuals = (rows[:, 0] - ratio * sizes) / sizes.mean()
    expected = stats.ttest_1samp(ratio + residuals, 0).pvalue
    p = p_value(rows, None, lambda means: means[:, 0] / means[:, 1])
    assert p == pytest.approx(expected, abs=0.02, rel=0.2)


def test_documents_that_do_not_differ_leave_a_rare_difference_possible() -> None:
    """Of 26 documents, none differs with probability 5% if 10.9% of all do: 0.891 ** 26 = 0.05."""
    equal = compared(np.zeros((26, 1)), None, 0.02, largest=1.0)
    assert equal is not None and equal.narrow == pytest.approx((-0.109, 0.109), abs=5e-4)
    assert equal.difference.interval == pytest.approx((-0.132, 0.132), abs=5e-4)
    assert (equal.verdict, equal.needed, equal.p) == ("too few documents", 149, 1.0)
    few = compared(np.zeros((7, 1)), None, 0.02, largest=1.0)  # without an interval
    assert few is not None and few.needed == 149
    enough = compared(np.zeros((149, 1)), None, 0.02, largest=1.0)
    assert enough is not None and (enough.verdict, enough.needed) == ("equivalent", None)
    # A score that no document changes is equal by construction.
    assert (same := compared(np.zeros((26, 1)), None, 0.02)) and same.verdict == "equivalent"
    rare = compared(np.eye(26)[0][:, None], None, 0.02, largest=1.0)
    assert rare is not None and rare.difference.value == pytest.approx(1 / 26)


def test_losses_that_few_documents_show_are_not_ruled_out() -> None:
    """A gain in 2 of 21 documents and no loss leave rare losses possible."""
    few = paired(np.zeros(21), np.eye(21)[0] * 0.1 + np.eye(21)[5] * 0.02, None, 0.01, largest=1.0)
    assert few is not None and few.narrow is not None and few.difference.interval is not None
    assert few.narrow[0] == pytest.approx(0.12 / 21 - (1 - 0.05 ** (1 / 21)))
    assert not few.rules_out("lower")
    assert few.difference.interval[0] >= 0 and few.needed is not None
    # Most documents gain.
    gain = paired(np.zeros(21), normal(0.05, 0.02, 21)[:, 0], None, 0.01, largest=1.0)
    assert gain is not None and gain.narrow is not None
    assert gain.verdict == "higher" and gain.narrow[0] < -0.05 and not gain.rules_out("lower")


@pytest.mark.parametrize(
    "n_differing, size, enough", [(4, 0.1, False), (5, 0.1, True), (9, 0.1, True), (9, 0.02, False)]
)
def test_fewer_than_five_losses_beyond_the_margin_leave_rare_ones_possible(
    n_differing: int, size: float, enough: bool
) -> None:
    """None of n documents loses with probability 5% if 1 - 0.05 ** (1 / n) of all documents do."""
    lost = (np.arange(60) < n_differing).astype(float)
    values = size * (np.roll(lost, 30) - lost)
    compared_few = paired(np.zeros(60), values, None, 0.02, largest=1.0)
    assert compared_few is not None and compared_few.narrow is not None
    assert compared_few.rules_out("lower") is enough
    if enough:
        assert compared_few.verdict == "equivalent" and compared_few.needed is None
    else:
        assert compared_few.narrow[0] == pytest.approx(-(1 - 0.05 ** (1 / 60)))
        assert (compared_few.verdict, compared_few.needed) == ("too few documents", 149)
        for n, verdict in ((148, "too few documents"), (149, "equivalent")):
            more = np.concatenate([values, np.zeros(n - 60)])
            assert (of_more := paired(np.zeros(n), more, None, 0.02, largest=1.0)) is not None
            assert of_more.verdict == verdict
    # Scores are not events: a document that was not seen differs as much as those that were.
    score = paired(np.zeros(60), values, None, 0.02)
    assert score is not None and score.verdict == "equivalent"


@pytest.mark.parametrize("n", [60, 150, 300])
def test_losses_within_the_margin_do_not_hide_a_rare_large_one(n: int) -> None:
    """Half of the documents lose 0.01 and 0.5% lose everything: 0.01 on average."""
    generator, ruled_out = np.random.default_rng(n), 0
    for _ in range(100):
        small = np.where(generator.random(n) < 0.5, 0.01, 0.0)
        after = -np.where(generator.random(n) < 0.005, 1.0, small)
        found = paired(np.zeros(n), after, None, 0.01, largest=1.0)
        ruled_out += found is not None and found.rules_out("lower")
    assert ruled_out / 100 <= 0.05
    # Most documents gain.
    gain = paired(np.zeros(21), normal(0.05, 0.02, 21)[:, 0], None, 0.01, largest=1.0)
    assert gain is not None and gain.narrow is not None
    assert gain.verdict == "higher" and gain.narrow[0] < -0.05 and not gain.rules_out("lower")


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("sizes", ["equal", "uniform", "exponential"])
def test_sparse_losses_of_the_margin_are_rarely_ruled_out(share: float, sizes: str) -> None:
    """The mean loss is exactly the margin; a share of the documents loses, and others gain."""
    generator, ruled_out = np.random.default_rng(4), 0
    loss = (0.01 + 0.006) / share
    for _ in range(150):
        size = {
            "equal": np.full(40, loss),
            "uniform": generator.uniform(0, 2 * loss, 40),
            "exponential": generator.exponential(loss, 40),
        }[sizes]
        gains = np.where(generator.random(40) < 0.3, 0.02, 0.0)
        after = gains - np.where(generator.random(40) < share, size, 0.0)
        found = paired(np.zeros(40), after, None, 0.01, largest=1.0)
        assert found is not None
        ruled_out += found.rules_out("lower")
    assert ruled_out / 150 < 0.09


def test_the_standard_error_is_over_documents_and_not_over_queries() -> None:
    values = np.repeat(normal(0, 1, 25), 4, axis=0)
    documents = np.repeat(np.arange(25), 4)
    assert standard_error(values, documents.tolist()) == pytest.approx(1 / 5)
    assert standard_error(values) == pytest.approx(values.std(ddof=1) / 10)
    assert standard_error(values[:4], [0] * 4) is None


EQUIVALENT = "Equivalent: the 90% interval is within the margin of 0.02."


@pytest.mark.parametrize(
    ("mean", "spread", "n", "verdict", "words"),
    [
        (0.05, 0.05, 30, "higher", "Higher (p "),
        (-0.05, 0.05, 30, "lower", "Lower (p "),
        (0.01, 0.01, 100, "higher", "Higher, by less than the margin of 0.02 (p "),
        (0.0, 0.02, 30, "equivalent", EQUIVALENT),
        (0.0, 0.1, 30, "too few documents", "Too few documents to decide; about "),
        (0.5, 0.01, 5, "too few documents", "Too few documents to decide: an interval needs 10."),
        (0.0, 0.0, 30, "equivalent", EQUIVALENT),
    ],
)
def test_verdicts_of_given_differences(
    mean: float, spread: float, n: int, verdict: str, words: str
) -> None:
    found = compared(normal(mean, spread, n), None, 0.02)
    assert found is not None
    assert found.verdict == verdict and found.sentence.startswith(words)


def test_a_verdict_that_the_adjustment_changed_says_so() -> None:
    found = compared(normal(0.05, 0.1, 30), None, 0.02)
    assert found is not None and found.verdict == "higher" and "Holm" not in found.sentence
    open_ = replace(found, p=0.03, p_holm=0.06, n_compared=2)
    assert open_.verdict == "too few documents"
    assert open_.sentence == (
        "Not significant (p = 0.06, Holm-adjusted over 2 tests): too few documents to decide; "
        f"about {open_.needed} documents would be needed."
    )


def test_equivalence_is_two_one_sided_tests() -> None:
    """The verdict agrees with scipy's two t tests against both ends of the margin."""
    for spread in (0.02, 0.04, 0.06, 0.08, 0.2):
        values = normal(0.002, spread, 200)
        found = compared(values, None, 0.01)
        p = max(
            stats.ttest_1samp(values[:, 0], -0.01, alternative="greater").pvalue,
            stats.ttest_1samp(values[:, 0], 0.01, alternative="less").pvalue,
        )
        assert found is not None and (found.verdict == "equivalent") == (p < 0.05), spread


def test_the_narrow_interval_is_inside_the_wide_one() -> None:
    values = normal(0, 1, 50)
    wide, narrow = intervals(values), intervals(values, level=0.9)
    assert wide is not None and narrow is not None
    assert wide[0][0] < narrow[0][0] < narrow[1][0] < wide[1][0]
    half = stats.t.ppf(0.95, 49) / np.sqrt(50)
    assert narrow[1][0] == pytest.approx(half, rel=0.15)


def test_the_number_needed_gives_a_verdict_in_four_of_five_samples() -> None:
    found = compared(normal(0.03, 0.1, 40), None, 0.005)
    assert found is not None and found.needed is not None and 70 < found.needed < 110
    decided = 0
    for _ in range(200):
        values = RNG.normal(0.03, 0.1, (found.needed, 1))
        again = compared(values, None, 0.005)
        decided += again is not None and again.verdict != "too few documents"
    assert 0.72 < decided / 200 < 0.92


def test_the_number_needed_for_equivalence_counts_both_tests() -> None:
    """The power of two one-sided t tests by the normal approximation, at the
    number needed and at one document less."""
    for value in (0.0, 0.004, 0.009):
        sample = RNG.standard_normal(30)
        sample = value + 0.1 * (sample - sample.mean()) / sample.std(ddof=1)
        found = compared(sample[:, None], None, 0.02)
        assert found is not None and found.needed is not None

        def power(n: int, value: float = value) -> float:
            ends = np.array([0.02 - value, 0.02 + value]) / (0.1 / np.sqrt(n))
            return float(stats.norm.cdf(ends - stats.norm.isf(0.05)).sum() - 1)

        assert power(found.needed - 1) < 0.8 <= power(found.needed)


def test_the_number_needed_accounts_for_all_comparisons_shown() -> None:
    """The weaker of two comparisons among fifteen needs more documents, whatever its own p."""
    needed = []
    for p in (0.03, 0.049, 0.051, 0.08, 0.2):
        sample = RNG.standard_normal(30)
        sample = (sample - sample.mean()) / sample.std(ddof=1)
        shift = stats.t.isf(p / 2, 29) / np.sqrt(30)
        mine = compared((sample + shift)[:, None], None, 0.01)
        others = [compared(RNG.normal(0, 1, (30, 1)), None, 0.01) for _ in range(14)]
        weakest = [replace(each, p=0.9) for each in others if each is not None]
        (found, *_) = adjusted([mine, *weakest])
        assert found is not None and found.needed is not None
        expected = (stats.norm.isf(0.05 / 15 / 2) + stats.norm.isf(0.2)) / shift
        assert found.needed == pytest.approx(expected**2, abs=2)
        needed.append(found.needed)
    assert needed == sorted(needed)


def test_higher_says_if_the_bootstrap_interval_includes_zero() -> None:
    found = compared(normal(0.05, 0.05, 30), None, 0.02)
    assert found is not None
    wide = replace(found, difference=replace(found.difference, low=-0.001))
    assert wide.verdict == "higher"
    assert wide.sentence == (
        f"{found.sentence.removesuffix(').')}, by Student's t; the bootstrap interval includes 0)."
    )


def test_holm_over_all_comparisons_removes_chance_findings() -> None:
    weak, none = compared(normal(0.02, 0.05, 30), None, 0.01), None
    assert weak is not None and weak.verdict == "higher" and weak.needed is None
    rest = [compared(normal(0.0, 0.05, 30), None, 0.01) for _ in range(9)]
    together = adjusted([weak, none, *rest])
    assert together[1] is None and together[0] is not None
    assert together[0].p_holm == pytest.approx(10 * (weak.p or 0))
    assert together[0].verdict == "too few documents"
    assert together[0].needed is not None and together[0].needed > 30
    assert adjusted([weak])[0] == weak


def test_the_largest_p_counts_as_adjusted_though_unchanged() -> None:
    sure, less = (compared(normal(mean, 0.05, 30), None, 0.01) for mean in (0.2, 0.025))
    assert sure is not None and less is not None and less.verdict == "higher"
    among = adjusted([sure, less])[1]
    assert among is not None and among.p == among.p_holm == less.p
    assert p_in_words(among) == f"{p_in_words(less)}, Holm-adjusted over 2 tests"
    tiny = replace(among, p_holm=0.0002)
    assert p_in_words(tiny) == "p < 0.001, Holm-adjusted over 2 tests"
    for p, text in ((0.0502, "0.0502"), (0.04996, "0.04996"), (0.05, "0.05"), (0.0612, "0.061")):
        assert p_in_words(replace(tiny, p_holm=p, n_compared=1)) == f"p = {text}"


def test_holm_computed_by_hand() -> None:
    # Sorted .005 .01 .03 .04: times 4, 3, 2, 1 -> .02 .03 .06 .04, and never falling -> .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]).tolist() == [1, 1] and holm([]).shape == (0,)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_is_between_one_test_and_bonferroni(p: list[float]) -> None:
    found, given_p = holm(p), np.array(p)
    assert (found >= given_p).all() and (found <= np.minimum(len(p) * given_p, 1) + 1e-12).all()
    assert (np.diff(found[np.argsort(given_p, kind="stable")]) >= 0).all()


def test_one_document_has_no_p() -> None:
    one = compared(np.full((3, 1), 0.1), ["d"] * 3, 0.02)
    assert isinstance(one, Comparison) and (one.p, one.needed) == (None, 10)
    assert one.verdict == "too few documents"


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ((0.0003, 0.0277), "higher"),
        ((-0.0277, -0.0003), "lower"),
        ((-0.04, 0.05), "equivalent"),
        ((-0.04, 0.051), "too few documents"),
        (None, "too few documents"),
    ],
)
def test_an_interval_without_p_is_judged_by_both_ends(
    ends: tuple[float, float] | None, verdict: str
) -> None:
    low, high = ends or (None, None)
    assert judged(Estimate(0.014, low, high, n=304), 0.05) == verdict
    assert judged(None, 0.05) == "too few documents"


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Estimate(-0.054, -0.082, -0.027), "drops by 0.054 [0.027, 0.082]"),
        (Estimate(0.02, -0.01, 0.05), "rises by 0.020 [-0.010, 0.050]"),
        (Estimate(-0.02, -0.05, 0.01), "drops by 0.020 [-0.010, 0.050]"),
        (Estimate(-0.02), "drops by 0.020"),
        (Estimate(0.0, 0.0, 0.0).times(-1), "does not change"),
        (Estimate(0.0, -0.01, 0.02), "changes by less than 0.001 [-0.010, 0.020]"),
        (Estimate(-4e-4, -0.01, 0.02), "drops by less than 0.001 [-0.020, 0.010]"),
    ],
)
def test_the_wording_states_the_direction_of_the_change(difference: Estimate, words: str) -> None:
    assert change_in_words(difference) == words
    size = size_in_words(difference, ".3f")
    assert size == words.partition(" by ")[2], "nothing for a change that rounds to 0"


def test_a_difference_beyond_the_margin_is_ruled_out_by_a_one_sided_test() -> None:
    """As scipy's t test against that end of the margin, on either side."""
    for mean in (-0.02, 0.0, 0.004, 0.008, 0.02):
        values = normal(mean, 0.05, 200)
        comparison = paired(np.zeros(200), values[:, 0], None, 0.01)
        assert comparison is not None
        for side, end, alternative in (("higher", 0.01, "less"), ("lower", -0.01, "greater")):
            p = stats.ttest_1samp(values[:, 0], end, alternative=alternative).pvalue
            decided = comparison.rules_out(side)  # type: ignore[arg-type]
            assert decided == (p < 0.05) or abs(p - 0.05) < 0.01, (mean, side)
    few = paired(np.zeros(5), np.zeros(5), None, 0.01)
    assert few is not None and not few.rules_out("higher") and not few.rules_out("lower")


def test_indices_are_compared_over_mean_curves_of_the_same_texts() -> None:
    def compare(before: np.ndarray, after: np.ndarray) -> Comparison | None:
        return paired_statistics(before, after, None, INDEX_MARGIN, primacy_recency_index)

    before = np.ones((20, 100))
    after = before.copy()
    after[:, -33:] = 3.0  # (99 - 33) / (99 + 33) = 0.5, and 0 before
    more = compare(before, after)
    assert more is not None and more.verdict == "higher"
    assert more.difference.value == pytest.approx(0.5) and more.margin == 0.05
    # Texts with larger scores weigh more in a mean curve, so this is not the mean of the texts'
    # indices.
    after[0] *= 100
    heavy = compare(before, np.where(np.arange(20)[:, None] == 0, after, before))
    assert heavy is not None and heavy.difference.value > 0.4
    same = compare(after, after)
    assert same is not None and same.verdict == "equivalent" and same.difference.value == 0
    assert compare(before[:0], after[:0]) is None


def test_rounding_is_no_difference_and_few_equal_documents_decide_nothing() -> None:
    scores = RNG.uniform(0.2, 0.9, 20)
    documents = [f"d{n}" for n in range(20)]
    rounded = paired_by_document(scores, scores + 1e-8, documents, 0.005)
    assert rounded is not None and (rounded.verdict, rounded.difference.value) == ("equivalent", 0)
    few = paired_by_document(scores[:2], scores[:2], documents[:2], 0.005)
    assert few is not None and (few.verdict, few.needed) == ("too few documents", 10)
    ten = paired_by_document(scores[:10], scores[:10], documents[:10], 0.005)
    assert ten is not None and ten.verdict == "equivalent"


def test_the_number_needed_for_a_statistic_that_is_not_smooth_is_from_its_interval() -> None:
    """Leaving out one document hardly moves a maximum over columns, so the jackknife's error is
    far smaller than the interval."""
    rows = RNG.normal(0, 1, (40, 4))

    def apart(means: np.ndarray) -> np.ndarray:
        return np.asarray(means[:, :2].max(1) - means[:, 2:].max(1))

    found = compared(rows, None, 0.05, apart, kind="percentile")
    assert found is not None and found.narrow is not None and found.error is not None
    width = found.narrow[1] - found.narrow[0]
    assert found.error == pytest.approx(width / 2 / 1.6449, rel=1e-3)


def test_ruling_out_an_increase_takes_fewer_documents_than_a_verdict() -> None:
    """One document of 72 became better. Only rare increases are left to rule out: those of a share
    q of all documents with q - 1 / 72 <= 0.02, so 0.05^(1 / n) >= 1 - q."""
    rows = np.zeros((72, 1))
    rows[0] = -1
    few = compared(rows, None, 0.02, largest=1.0)
    assert few is not None and not few.rules_out("higher")
    assert few.needed_one_sided == math.ceil(math.log(0.05) / math.log1p(-0.02 - 1 / 72)) == 87
    assert few.needed is not None and few.needed > 500
    assert "about 87 documents" in few.in_words(one_sided=True)
    more = compared(np.concatenate([rows, np.zeros((28, 1))]), None, 0.02, largest=1.0)
    assert more is not None and more.rules_out("higher") and more.needed_one_sided is None
    # By sampling alone: 1.645 + 0.842 standard errors must fit between estimate and margin.
    rows = np.tile([[-0.2], [0.18]], (20, 1))
    spread = float(rows.std(ddof=1))
    wide = compared(rows, None, 0.02)
    assert wide is not None and wide.needed_one_sided == math.ceil((2.4865 * spread / 0.03) ** 2)
