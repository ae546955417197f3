"""Recommendations: less position bias at no cost, and nothing if the data are insufficient."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.evaluation.comparison import Comparison, paired
from poslens.attribution.evaluation.recommendation import (
    MARGIN,
    on_quality_front,
    recommendation,
)
from poslens.attribution.evaluation.sizes import paired_sizes

RNG = np.random.default_rng(0)


def mean(value: float, spread: float = 0.01, n: int = 60, margin: float = MARGIN) -> Comparison:
    """A comparison of exactly this mean difference over n documents."""
    drawn = RNG.normal(size=n)
    after = value + spread * (drawn - drawn.mean()) / drawn.std()
    comparison = paired(np.zeros(n), after, None, margin)
    assert comparison is not None
    return comparison


LESS, MORE, SAME = mean(-0.05), mean(0.05), mean(0.0)
OPEN, OPEN_WORSE = mean(-0.01, 0.2), mean(0.01, 0.2)


@pytest.mark.parametrize(
    ("bias", "quality", "recommended", "reason"),
    [
        (LESS, SAME, True, "the effect is lower, and a loss of 0.01 in nDCG@10 is ruled out"),
        (LESS, MORE, True, "the effect is lower, and nDCG@10 is higher"),
        (LESS, OPEN, False, "to rule out a loss of 0.01 in nDCG@10 (measured on 60); about "),
        (LESS, LESS, False, "On held-out documents, nDCG@10 is lower."),
        (LESS, None, False, "its cost is unknown"),
        (LESS, mean(0.0, n=5), False, "Too few held-out documents to rule out a loss"),
        (OPEN, MORE, False, "to decide whether the effect (measured on 60) changes; about "),
        (OPEN_WORSE, MORE, False, "to decide whether the effect (measured on 60) changes; about "),
        (SAME, MORE, False, "position bias is not lower"),
        (MORE, MORE, False, "the effect is higher"),
        (MORE, LESS, False, "the effect is higher and nDCG@10 is lower"),
        (mean(-0.1, n=5), SAME, False, "the effect (measured on 5) changes; about 10 would be"),
        (None, SAME, False, "Position bias was not measured."),
    ],
)
def test_recommendation_and_reason_of_given_changes(
    bias: Comparison | None, quality: Comparison | None, recommended: bool, reason: str
) -> None:
    advice = recommendation({"the effect": bias}, quality)
    assert advice.recommended is recommended and reason in advice.reason


def test_a_significant_gain_that_few_losses_can_outweigh_is_recommended() -> None:
    """All of 21 documents gain, which leaves rare losses possible."""
    after = np.linspace(0.04, 0.06, 21)
    gain = paired(np.zeros(21), after, None, MARGIN, largest=1.0)
    assert gain is not None and gain.verdict == "higher" and not gain.rules_out("lower")
    assert recommendation({"a": LESS}, gain).reason.endswith("nDCG@10 is higher.")
    some = paired(np.zeros(21), np.eye(21)[0] * 0.1, None, MARGIN, largest=1.0)
    assert recommendation({"a": LESS}, some).reason.startswith(
        "Too few held-out documents to rule out a loss of 0.01 in nDCG@10 (measured on 21); about "
    )


def test_one_better_measure_is_enough_and_one_worse_measure_is_too_many() -> None:
    assert recommendation({"a": SAME, "b": LESS}, SAME).recommended
    assert recommendation({"a": SAME}, SAME, {"b": MORE}).reason.startswith(
        "On held-out documents, b is higher, and"
    )
    assert not recommendation({"a": LESS, "b": MORE}, SAME).recommended
    assert not recommendation({"a": LESS}, SAME, {"b": LESS}).recommended


def test_a_loss_beyond_the_margin_is_recommended_as_rarely_as_the_test_allows() -> None:
    """A one-sided test at 5%, with a true loss equal to the margin."""
    recommended = 0
    for _ in range(300):
        loss = paired(np.zeros(40), RNG.normal(-MARGIN, 0.02, 40), None, MARGIN)
        recommended += recommendation({"a": LESS}, loss).recommended
    assert recommended / 300 < 0.09


@pytest.mark.parametrize("sign", [1, -1])
def test_a_size_shrinks_in_either_direction(sign: int) -> None:
    documents = [f"d{n // 2}" for n in range(80)]
    before = sign * (0.1 + 0.02 * RNG.standard_normal(80))
    after = 0.01 * RNG.standard_normal(80)
    less = paired_sizes(before, after, documents, 0.01)
    assert less is not None and less.difference.interval is not None
    expected = abs(after.mean()) - abs(before.mean())
    assert less.difference.value == pytest.approx(expected)
    assert less.difference.interval[1] < -0.08 and less.verdict == "lower"
    # Overshooting to the other side is not a gain.
    over = paired_sizes(before, -before, documents, 0.02)
    assert over is not None and over.difference.value == pytest.approx(0)
    assert over.verdict == "equivalent"


def test_the_pareto_front_has_the_points_that_no_other_dominates() -> None:
    points = [(0.05, 0.88), (0.01, 0.89), (0.0, 0.85), (0.02, 0.9), (None, 0.99), (0.0, None)]
    assert on_quality_front(points) == [False, True, True, True, None, None]
    assert on_quality_front([(0.5, 0.5), (0.5, 0.5)]) == [True, True]
