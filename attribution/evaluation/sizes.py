"""Comparisons of the sizes of two mean effects, whatever their signs.

Noise increases the size of a mean near 0, and resampling increases it once more, so a bootstrap
interval of a difference of sizes is shifted. Here, intervals and p are from signed means instead:
the size of b exceeds that of a by less than m if both b and -b exceed a, or both exceed -a, by less
than m. Where it is unknown which sign a has, either could be true by chance, so each gets half of
the error probability (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
import scipy  # loads scipy.special at its first use
from numpy.typing import ArrayLike

from poslens.attribution.curves.bootstrap import (
    MIN_DOCUMENTS,
    Statistic,
    Values,
    effective_size,
    interval,
    n_groups,
    numbered,
    standard_error,
    with_ends,
)
from poslens.attribution.evaluation.comparison import Comparison, comparison_of

CLEAR = 3.0
"""Number of standard errors from 0 at which the sign of a mean counts as known: noise alone exceeds
it in 0.3% of samples."""

_SIGNS = (1, -1)


def paired_sizes(
    before: ArrayLike,
    after: ArrayLike,
    groups: Sequence[Hashable] | None,
    margin: float,
    largest: float | None = None,
) -> Comparison | None:
    """The size of the mean of after [n] minus the size of the mean of before [n], both regardless
    of sign: lower where an effect in either direction becomes smaller. `largest` as in `compared`.
    None without rows."""
    rows = np.stack([np.asarray(side, np.float64) for side in (before, after)], axis=1)
    if not len(rows):
        return None
    value, n = float(_difference(rows.mean(0, keepdims=True))[0]), n_groups(len(rows), groups)
    wide = narrow = p = None
    if n >= MIN_DOCUMENTS:
        old, new = (_possible_signs(rows, groups, column) for column in (0, 1))
        wide, narrow = (_ends(rows, groups, old, new, level) for level in (0.95, 0.9))
        p = _p_value(rows, groups, old, new, value)
    difference = with_ends(value, wide, len(rows), n)
    return comparison_of(rows, groups, margin, _difference, difference, narrow, p, largest)


def _difference(means: Values) -> Values:
    return np.abs(means[:, 1]) - np.abs(means[:, 0])


def _signed(of_before: int, of_after: int) -> Statistic:
    """Both means with these signs, added."""
    return lambda means: of_before * means[:, 0] + of_after * means[:, 1]


def _possible_signs(
    rows: Values, groups: Sequence[Hashable] | None, column: int
) -> tuple[int, ...]:
    """The sign of a column's mean if it is known, otherwise both."""
    mean = float(rows[:, column].mean())
    error = standard_error(rows, groups, lambda means: means[:, column])
    if error is not None and abs(mean) > CLEAR * error:
        return (1 if mean > 0 else -1,)
    return _SIGNS


def _worst(possible: Iterable[int], of: Callable[[int, int], float]) -> float:
    """The largest value over the signs of one mean, of the smallest one over those of the other
    mean that are `possible`."""
    return max(min(of(sign, other) for other in possible) for sign in _SIGNS)


def _ends(
    rows: Values,
    groups: Sequence[Hashable] | None,
    old: tuple[int, ...],
    new: tuple[int, ...],
    level: float,
) -> tuple[float, float] | None:
    """The interval of the difference of sizes at this level."""

    def upper(of_before: int, of_after: int, n: int) -> float:
        statistic = _signed(of_before, of_after)
        ends = interval(rows, groups, statistic, level=1 - (1 - level) / n)
        return math.inf if ends is None else ends[1]

    high = _worst(old, lambda after, before: upper(-before, after, len(old)))
    low = -_worst(new, lambda before, after: upper(before, -after, len(new)))
    return (low, high) if math.isfinite(high - low) else None


def _p_value(
    rows: Values,
    groups: Sequence[Hashable] | None,
    old: tuple[int, ...],
    new: tuple[int, ...],
    value: float,
) -> float:
    """Two-sided p of a difference of sizes that has this value, by Student's t."""
    sizes = np.bincount(numbered(range(len(rows)) if groups is None else groups))
    degrees = effective_size(sizes) - 1

    def below(of_before: int, of_after: int, n: int) -> float:
        statistic = _signed(of_before, of_after)
        mean = float(statistic(rows.mean(0, keepdims=True))[0])
        error = standard_error(rows, groups, statistic)
        if not error:
            return float(mean >= 0)
        return n * float(scipy.special.stdtr(degrees, mean / error))

    if value < 0:
        one_sided = _worst(old, lambda after, before: below(-before, after, len(old)))
    else:
        one_sided = _worst(new, lambda before, after: below(before, -after, len(new)))
    return min(1.0, 2 * one_sided)
