"""Intervals of the bootstrap, computed one number at a time from the textbook."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from poslens.attribution.curves.bootstrap import N_BOOTSTRAP, Values, intervals


def student_level(n: float, level: float = 0.95) -> float:
    """The level at which the normal interval of n draws is as wide as Student's at `level`, which
    takes the standard deviation over n - 1."""
    critical = t.ppf((1 + level) / 2, n - 1) * np.sqrt(n / (n - 1))
    return float(2 * norm.cdf(critical) - 1)


def plain_bca(
    value: float,
    drawn: Sequence[float],
    all_but_one: Sequence[float],
    sizes: Sequence[int] = (1,),
) -> tuple[float, float]:
    """Efron and Tibshirani 1993, equations 14.9 to 14.15, at Student's level for as many documents
    of equal size as weigh like those with these `sizes` (Kish 1965)."""
    bias = norm.ppf(np.mean([one < value for one in drawn]))
    apart = np.mean(all_but_one) - np.array(all_but_one)
    acceleration = (apart**3).sum() / (6 * (apart**2).sum() ** 1.5)
    unevenness = np.mean(np.square(sizes)) / np.mean(sizes) ** 2
    critical = norm.ppf((1 + student_level(len(all_but_one) / unevenness)) / 2)
    ends = [
        norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (-critical, critical)
    ]
    low, high = np.quantile(drawn, ends)
    return float(low), float(high)


def drawn_means(
    rows: NDArray[np.floating],
    groups: Sequence[Hashable] | None = None,
    n_resamples: int = N_BOOTSTRAP,
) -> Values:
    """The means [R, K] over which `intervals` computes a statistic."""
    seen: list[Values] = []

    def watched(means: Values) -> Values:
        seen.append(means.copy())
        return means

    intervals(rows, groups, watched, n_resamples=n_resamples)
    return seen[1]
