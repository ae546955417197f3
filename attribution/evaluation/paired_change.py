"""Two models over the same documents: what changed, paired, and whether the change is worth it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from poslens.attribution.curves.bootstrap import Estimate, Values, estimate

MARGIN = 0.01
"""Largest loss of nDCG@10 that is still no loss."""


def change_of_mean(
    before: ArrayLike, after: ArrayLike, documents: Sequence[Hashable]
) -> Estimate | None:
    """Mean of after minus before [n]; its interval resamples documents. None without rows."""
    difference = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    return estimate(difference[:, None], documents)


def change_of_size(
    before: ArrayLike, after: ArrayLike, documents: Sequence[Hashable]
) -> Estimate | None:
    """Size of the mean of after [n] minus size of the mean of before [n], both regardless of sign:
    negative where an effect in either direction becomes smaller. None without rows."""
    rows = np.stack([np.asarray(before, np.float64), np.asarray(after, np.float64)], axis=1)

    def statistic(means: Values) -> Values:
        return np.asarray(np.abs(means[:, 1]) - np.abs(means[:, 0]))

    # A size is not smooth at 0.
    return estimate(rows, documents, statistic, kind="percentile")


@dataclass(frozen=True, slots=True)
class Debiased:
    """Whether a change to a model removes position bias at no cost, and why in one sentence."""

    recommended: bool
    reason: str


def judge(effect: Estimate | None, quality: Estimate | None) -> Debiased:
    """Whether a change is recommended. `effect` is the change of the size of the position effect,
    `quality` that of nDCG@10, both on documents that were not trained on.

    It is where the effect becomes smaller (its interval is below 0) and a loss of more than
    MARGIN is ruled out (the interval of nDCG@10 is above -MARGIN).
    """
    if effect is None or effect.interval is None:
        return Debiased(False, "Too few held-out documents to tell whether the effect is smaller.")
    low, high = effect.interval
    if high >= 0:
        less = "is larger" if low > 0 else "is not shown to be smaller"
        return Debiased(False, f"The position effect {less}.")
    if quality is None:
        return Debiased(False, "Without judged queries its cost is not known.")
    if quality.interval is None:
        return Debiased(False, "Too few held-out documents to rule out a cost.")
    low, high = quality.interval
    if high < 0:
        return Debiased(False, "It costs nDCG@10.")
    if low <= -MARGIN:
        return Debiased(
            False, f"Too few held-out queries to rule out a loss of {MARGIN:g} in nDCG@10."
        )
    gains = "nDCG@10 rises" if low > 0 else f"a loss of {MARGIN:g} in nDCG@10 is ruled out"
    return Debiased(True, f"The position effect is smaller, and {gains}.")


def on_quality_front(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Which of the points (size of the position effect, nDCG@10) no other one beats in both; a
    point that lacks one of the two is on no front."""

    def beats(one: tuple[float | None, float | None], two: tuple[float, float]) -> bool:
        if one[0] is None or one[1] is None:
            return False
        return one[0] <= two[0] and one[1] >= two[1] and one != two

    return [
        effect is not None
        and quality is not None
        and not any(beats(other, (effect, quality)) for other in points)
        for effect, quality in points
    ]
