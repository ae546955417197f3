"""What is recommended: a smaller position effect at no cost, and nothing where data cannot tell."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.paired_change import (
    change_of_mean,
    change_of_size,
    judge,
    on_quality_front,
)

DOCUMENTS = [f"d{n // 2}" for n in range(80)]


def test_a_change_is_paired() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(80)
    found = change_of_mean(before, before + 0.05, DOCUMENTS)
    assert found is not None and found.interval is not None
    assert found.value == pytest.approx(0.05) and found.interval == pytest.approx((0.05, 0.05))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_size_shrinks_in_either_direction(sign: int) -> None:
    rng = np.random.default_rng(0)
    before = sign * (0.1 + 0.02 * rng.standard_normal(80))
    after = 0.01 * rng.standard_normal(80)
    found = change_of_size(before, after, DOCUMENTS)
    assert found is not None and found.interval is not None
    expected = abs(after.mean()) - abs(before.mean())
    assert found.value == pytest.approx(expected) and found.interval[1] < -0.08
    # Overshooting to the other side is no gain.
    over = change_of_size(before, -before, DOCUMENTS)
    assert over is not None and over.interval is not None
    assert over.value == pytest.approx(0) and over.interval[0] <= 0 <= over.interval[1]


LESS = Estimate(-0.04, -0.05, -0.03)


@pytest.mark.parametrize(
    ("effect", "quality", "recommended", "reason"),
    [
        (LESS, Estimate(0.0, -0.009, 0.009), True, "a loss of 0.01 in nDCG@10 is ruled out"),
        (LESS, Estimate(0.02, 0.01, 0.03), True, "nDCG@10 rises"),
        (LESS, Estimate(-0.005, -0.02, 0.01), False, "Too few held-out queries"),
        (LESS, Estimate(-0.02, -0.03, -0.001), False, "It costs nDCG@10"),
        (LESS, None, False, "cost is not known"),
        (LESS, Estimate(0.0), False, "Too few held-out documents to rule out a cost"),
        (Estimate(-0.01, -0.03, 0.01), Estimate(0.1, 0.05, 0.2), False, "not shown to be smaller"),
        (Estimate(0.02, 0.01, 0.03), Estimate(0.1, 0.05, 0.2), False, "effect is larger"),
        (Estimate(-0.1), Estimate(0.0, -0.001, 0.001), False, "Too few held-out documents to tell"),
        (None, Estimate(0.0, -0.001, 0.001), False, "Too few held-out documents to tell"),
    ],
)
def test_what_is_recommended(
    effect: Estimate | None, quality: Estimate | None, recommended: bool, reason: str
) -> None:
    found = judge(effect, quality)
    assert found.recommended is recommended and reason in found.reason


def test_the_front_has_what_no_other_point_beats_in_both() -> None:
    points = [(0.05, 0.88), (0.01, 0.89), (0.0, 0.85), (0.02, 0.9), (None, 0.99), (0.0, None)]
    assert on_quality_front(points) == [False, True, True, True, False, False]
    assert on_quality_front([(0.5, 0.5), (0.5, 0.5)]) == [True, True]
