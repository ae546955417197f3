"""The bootstrap against a plain loop over documents, and its results for few documents."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.stats import bootstrap as scipy_bootstrap

from poslens.attribution.curves import bootstrap
from poslens.attribution.curves.bootstrap import (
    MAX_DRAWS,
    MIN_DOCUMENTS,
    Estimate,
    Kind,
    Statistic,
    effective_size,
    estimate,
    intervals,
    ratio,
    ratio_difference,
    standard_error,
)
from poslens.attribution.evaluation.comparison import compared
from tests.support.plain_bootstrap import drawn_means, plain_bca, student_level


def clustered(n_documents: int = 30, each: int = 6) -> tuple[np.ndarray, list[str]]:
    """Rows [n, 1] whose documents differ far more than the rows of one document."""
    generator = np.random.default_rng(4)
    levels = generator.normal(0, 1, n_documents)
    rows = np.repeat(levels, each) + generator.normal(0, 0.1, n_documents * each)
    return rows[:, None], [f"d{i // each}" for i in range(n_documents * each)]


def test_the_interval_equals_that_of_a_plain_loop_over_documents() -> None:
    rows, groups = clustered()
    generator = np.random.default_rng(0)
    names = sorted(set(groups))
    by_name = {name: rows[[g == name for g in groups], 0] for name in names}
    plain = [
        np.concatenate([by_name[n] for n in generator.choice(names, len(names))]).mean()
        for _ in range(4000)
    ]
    without = [np.concatenate([by_name[n] for n in names if n != one]).mean() for one in names]
    found = estimate(rows, groups)
    assert found is not None and found.interval is not None
    assert found.interval == pytest.approx(plain_bca(found.value, plain, without), abs=0.05)


def test_documents_with_several_pairs_widen_the_interval() -> None:
    rows, groups = clustered()
    by_pair, by_document = estimate(rows), estimate(rows, groups)
    assert by_pair and by_document and by_pair.interval and by_document.interval
    width = np.diff(by_document.interval)[0] / np.diff(by_pair.interval)[0]
    # Rows of a document are nearly equal, so 180 pairs say what 30 documents say.
    assert width == pytest.approx(np.sqrt(6), rel=0.15)
    assert (by_document.n, by_document.n_resampled) == (180, 30)


def test_a_document_is_weighted_by_its_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MIN_DOCUMENTS", 2)
    rows = np.array([[0.0], [0.0], [0.0], [1.0]])
    drawn = set(np.round(drawn_means(rows, ["a", "a", "a", "b"])[:, 0], 6))
    assert drawn == {0.0, 0.25, 1.0}


def test_bundling_very_many_documents_does_not_change_the_interval() -> None:
    generator = np.random.default_rng(7)
    n = MAX_DRAWS * 3 // 2
    levels = generator.exponential(1, n)
    sizes = generator.integers(1, 4, n)
    rows = np.repeat(levels, sizes)
    found = drawn_means(rows[:, None], np.repeat(np.arange(n), sizes).tolist())[:, 0]
    # By hand: the standard error of a ratio of two sums over independent documents.
    mean = rows.mean()
    spread = np.sqrt(np.sum(((levels - mean) * sizes) ** 2)) / sizes.sum()
    assert found.std() == pytest.approx(spread, rel=0.1)
    assert found.mean() == pytest.approx(mean, abs=3 * spread / np.sqrt(len(found)))
    assert np.percentile(found, [2.5, 97.5]) == pytest.approx(
        mean + spread * np.array([-1.96, 1.96]), abs=0.3 * spread
    )


def test_a_skewed_mean_has_scipys_bca_interval_at_the_student_t_level() -> None:
    rows = np.random.default_rng(2).lognormal(0, 1, 30)
    found = estimate(rows[:, None], n_resamples=20_000)
    level = student_level(30)
    assert level == pytest.approx(0.962, abs=0.001)
    known = scipy_bootstrap(
        (rows,), np.mean, n_resamples=20_000, confidence_level=level, method="BCa", rng=1
    ).confidence_interval
    assert found is not None and found.interval == pytest.approx(tuple(known), rel=0.02)


@pytest.mark.parametrize("kind", ["bca", "percentile"])
def test_the_interval_of_twelve_documents_has_nearly_nominal_coverage(kind: Kind) -> None:
    """The percentile interval at 95% contains the mean in 89% of samples."""
    generator, hits = np.random.default_rng(5), 0
    for _ in range(600):
        found = estimate(generator.normal(0, 1, (12, 1)), kind=kind)
        assert found is not None and found.interval is not None
        hits += found.interval[0] <= 0 <= found.interval[1]
    assert hits / 600 == pytest.approx(0.94, abs=0.025)


def test_a_distance_has_an_interval_from_0_that_contains_it() -> None:
    """Noise raises it, and resampling raises it again: percentiles are all above the value."""
    rows = np.random.default_rng(6).normal(0, 1, (40, 50))

    def distance(means: np.ndarray) -> np.ndarray:
        return np.abs(means).mean(1)

    found = estimate(rows, None, distance, kind="upper")
    assert found is not None and found.interval is not None
    assert found.low == 0 and found.value < found.interval[1]
    drawn = distance(drawn_means(rows))
    assert np.percentile(drawn, 2.5) > found.value
    # The one-sided 95% limit, at Student's level.
    level = (1 + student_level(40, 0.9)) / 2
    assert found.high == pytest.approx(np.quantile(drawn, level))


@pytest.mark.parametrize("kind", ["bca", "percentile"])
def test_an_interval_that_would_not_contain_its_value_is_left_out(kind: Kind) -> None:
    rows = np.random.default_rng(6).normal(0, 1, (40, 200))
    found = estimate(rows, None, lambda means: np.abs(means).mean(1), kind=kind)
    assert found is not None and found.interval is None and found.n_resampled == 40


def test_a_statistic_that_is_undefined_in_some_resamples_uses_the_others() -> None:
    rows = np.random.default_rng(8).random((20, 2))
    least = rows[:, 0].mean() - 0.1

    def often_undefined(means: np.ndarray) -> np.ndarray:
        return np.where(means[:, :1] > least, means, np.nan)

    assert (found := intervals(rows, None, often_undefined)) is not None
    drawn = drawn_means(rows)
    kept = drawn[drawn[:, 0] > least]
    assert 0 < len(kept) < len(drawn)
    assert kept[:, 0].min() <= found[0][0] <= rows[:, 0].mean() <= found[1][0]
    nowhere = intervals(rows, None, lambda means: means * np.nan)
    assert nowhere is not None and np.isnan(nowhere).all()


def test_equal_rows_have_an_interval_of_width_zero() -> None:
    found = estimate(np.full((12, 1), 0.1), [f"d{k}" for k in range(12)])
    assert found is not None and found.interval == (found.value, found.value)


def test_groups_of_one_equal_no_groups() -> None:
    rows, _ = clustered()
    assert np.array_equal(drawn_means(rows), drawn_means(rows, list(range(len(rows)))))


@pytest.mark.parametrize("n", [1, MIN_DOCUMENTS - 1])
def test_few_documents_have_an_estimate_and_no_interval(n: int) -> None:
    rows, groups = clustered(n)
    found = estimate(rows, groups)
    assert found is not None and found.interval is None and found.n_resampled == n
    assert intervals(rows, groups) is None
    assert str(found) == f"{rows.mean():.3f}"


def test_an_undefined_statistic_has_no_estimate() -> None:
    rows, groups = clustered()
    assert estimate(rows, groups, lambda means: means[:, 0] * np.nan) is None
    assert estimate(np.empty((0, 1)), []) is None


def test_text_has_the_format_and_rounds_halves_away_from_zero() -> None:
    assert Estimate(-0.25, -0.5, 0.125).text("+.2f") == "-0.25 [-0.50, +0.13]"
    share = Estimate(0.2625, -0.2625, 0.4375)
    assert share.text(".3f") == "0.263 [-0.263, 0.438]"
    assert share.times(100).text(".1f") == "26.3 [-26.3, 43.8]"


def test_of_numbers_that_round_to_zero_only_ends_below_it_have_a_minus_sign() -> None:
    small = Estimate(-0.0004, -0.0006, -0.0)
    assert small.text("+.3f") == "+0.000 [-0.001, +0.000]"
    # The interval includes 0.
    assert Estimate(0.0141, -0.0003, 0.0285).text("+.3f") == "+0.014 [-0.000, +0.029]"
    assert Estimate(-0.02, -0.03, -0.0003).text(".3f") == "-0.020 [-0.030, -0.000]"
    assert Estimate(0.01, -1e-17, 0.02).text(".3f") == "0.010 [0.000, 0.020]"
    assert small.text(".0%") == "0% [-0%, 0%]" and Estimate(512).text(",.0f") == "512"


def test_cached_draws_equal_newly_drawn_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, groups = clustered()
    asked = [
        (rows, groups, 1000),
        (rows, None, 1000),
        (rows, groups, 300),
        (rows * 2, groups, 1000),
    ]
    kept = [drawn_means(*one) for one in asked for _ in range(2)]
    monkeypatch.setattr(bootstrap, "_KEPT", 0)
    drawn = [drawn_means(*one) for one in asked for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(kept, drawn, strict=True))
    assert len({one.tobytes() for one in kept}) == len(asked)


def test_documents_without_items_change_nothing() -> None:
    generator = np.random.default_rng(4)
    sizes = generator.integers(1, 9, 14).astype(float)
    rows = np.stack([generator.binomial(sizes.astype(int), 0.4).astype(float), sizes], axis=1)
    alone = compared(rows, None, 0.02, ratio, counts=sizes)
    padded = np.concatenate([np.zeros((30, 2)), rows, np.zeros((5, 2))])
    among_others = compared(padded, None, 0.02, ratio, counts=padded[:, 1])
    assert alone is not None and among_others is not None
    assert alone.difference.interval is not None and alone.difference.n_resampled == 14
    assert among_others.difference.interval == alone.difference.interval
    assert (among_others.p, among_others.narrow) == (alone.p, alone.narrow)
    assert among_others.difference.n_resampled == 14
    nine = estimate(padded[:39], None, ratio, counts=padded[:39, 1])
    assert nine is not None and nine.interval is None and nine.n_resampled == 9


def test_each_of_two_shares_needs_ten_documents() -> None:
    """40 documents have items of the first kind, and only 9 or 10 of the second."""
    generator = np.random.default_rng(5)
    for n, enough in ((9, False), (10, True)):
        second = np.where(np.arange(40) < n, 3.0, 0.0)
        first = np.full(40, 4.0)
        events = [generator.binomial(size.astype(int), 0.4) for size in (first, second)]
        rows = np.stack([*events, first, second], axis=1).astype(float)
        difference = compared(rows, None, 0.02, ratio_difference, counts=rows[:, 2:])
        assert difference is not None and (difference.difference.interval is not None) == enough
        assert (difference.p is not None) == enough
        assert difference.difference.n_resampled == (40 if enough else 9)


@pytest.mark.parametrize("statistic", [ratio, ratio_difference])
def test_sums_over_a_documents_items_equal_the_items_with_their_documents(
    statistic: Statistic,
) -> None:
    """Intervals and p of shares of sentences account for documents that have most of them."""
    generator = np.random.default_rng(3)
    sizes = np.array([60, 16, 3, 4, 5, 3, 4, 6, 3, 4, 4, 3, 12, 4])
    documents = np.repeat(np.arange(len(sizes)), sizes)
    events = generator.binomial(1, 0.3, len(documents)).astype(float)
    items = np.stack([events, np.ones(len(documents))], axis=1)
    if statistic is ratio_difference:
        last = generator.binomial(1, 0.5, len(documents)).astype(float)
        items = np.stack([events * last, events * (1 - last), last, 1 - last], axis=1)
    sums = np.stack([items[documents == each].sum(0) for each in range(len(sizes))])
    counts = sums[:, items.shape[1] // 2 :].sum(1)
    assert counts.tolist() == sizes.tolist()
    whole, apart = (
        compared(rows, groups, 0.02, statistic, counts=of_rows)
        for rows, groups, of_rows in ((sums, None, counts), (items, documents.tolist(), None))
    )
    assert whole is not None and apart is not None and whole.narrow is not None
    assert whole.difference.interval == pytest.approx(apart.difference.interval)
    assert (whole.p, *whole.narrow) == pytest.approx((apart.p, *(apart.narrow or ())))
    # Few documents have most of the items: as many as 4.1 of equal size tell as much.
    alike = compared(sums, None, 0.02, statistic)
    assert alike is not None and whole.p is not None and alike.p is not None
    error = standard_error(sums, None, statistic)
    t = abs(whole.difference.value) / (error or np.nan)
    assert whole.p == pytest.approx(2 * stats.t.sf(t, effective_size(sizes) - 1))
    assert alike.p == pytest.approx(2 * stats.t.sf(t, len(sizes) - 1)) and alike.p < whole.p
