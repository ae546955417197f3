"""Comparisons of the sizes of effects: error rates with a planted truth, and the signed tests that
they consist of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from poslens.attribution.curves.bootstrap import interval
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.sizes import paired_sizes

RNG = np.random.default_rng(7)


def sizes(before: float, after: float, correlation: float, n: int) -> Comparison:
    """One sample of correlated values with these true means, SD 0.2, tolerance 0.05."""
    shared, *own = RNG.standard_normal((3, n))
    old, new = (
        mean + 0.2 * (np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * each)
        for mean, each in zip((before, after), own, strict=True)
    )
    found = paired_sizes(old, new, None, 0.05)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("before", "after", "correlation"),
    [(0.0, 0.05, 0.9), (0.0, -0.05, 0.5), (0.02, 0.07, 0.9), (0.2, 0.25, 0.9), (-0.2, 0.25, 0.5)],
)
def test_an_increase_by_the_margin_is_rarely_ruled_out(
    before: float, after: float, correlation: float
) -> None:
    """A one-sided test at 5%, also where there is no effect before: there, a bootstrap of the size
    rules the increase out in a fifth of samples."""
    found = [sizes(before, after, correlation, 30) for _ in range(300)]
    assert sum(each.rules_out("higher") for each in found) / 300 < 0.09
    truth = abs(after) - abs(before)
    covered = [
        each.difference.interval is not None
        and each.difference.interval[0] <= truth <= each.difference.interval[1]
        for each in found
    ]
    assert sum(covered) / 300 > 0.91


def test_equal_sizes_are_rarely_called_different() -> None:
    for before, after in ((0.0, 0.0), (0.1, 0.1), (0.1, -0.1)):
        found = [sizes(before, after, 0.5, 30) for _ in range(200)]
        assert sum((each.p or 0) < 0.05 for each in found) / 200 < 0.09


@pytest.mark.parametrize("sign", [1, -1])
def test_two_clear_effects_are_compared_by_the_paired_t_test(sign: int) -> None:
    old, new = sign * RNG.normal(0.3, 0.1, 40), sign * RNG.normal(0.2, 0.1, 40)
    found = paired_sizes(old, new, None, 0.05)
    assert found is not None and found.verdict == "lower"
    assert found.p == pytest.approx(stats.ttest_rel(new, old).pvalue)
    signed = interval((sign * (new - old))[:, None], None, lambda means: means[:, 0])
    assert found.difference.interval == pytest.approx(signed)


def test_an_effect_that_vanishes_is_smaller_whatever_the_sign_of_what_is_left() -> None:
    old, new = RNG.normal(0.2, 0.05, 40), RNG.normal(0.0, 0.05, 40)
    found = paired_sizes(old, new, None, 0.05)
    assert found is not None and found.verdict == "lower"
    p = max(stats.ttest_rel(side, old, alternative="less").pvalue for side in (new, -new))
    assert found.p == pytest.approx(2 * p)


def test_few_or_equal_values() -> None:
    assert paired_sizes([], [], None, 0.05) is None
    few = paired_sizes([0.1] * 9, [0.2] * 9, None, 0.05)
    assert few is not None and (few.p, few.narrow, few.verdict) == (None, None, "too few documents")
    values = RNG.normal(0.0, 0.1, 40)
    same = paired_sizes(values, values, None, 0.05)
    assert same is not None and same.difference.value == 0 and same.p == 1
