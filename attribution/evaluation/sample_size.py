"""Number of documents that would decide a comparison."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import scipy  # loads scipy.special at its first use

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS
from poslens.attribution.types import ROUNDING

LEVEL = 0.05
"""p below which a difference is significant."""

POWER = 0.8
"""Probability with which as many documents as `documents_to_decide` decide."""


def documents_to_decide(
    value: float, margin: float, error: float | None, n: int, factor: float = 1.0
) -> int | None:
    """Documents that would show, with probability POWER, either that the difference is not 0, if p
    is multiplied by `factor`, or that it is within the margin, whichever takes fewer (normal
    approximation)."""
    if error is None or not error:
        return MIN_DOCUMENTS if n < MIN_DOCUMENTS else None
    apart, spread = abs(value), error * math.sqrt(n)
    counts = []
    if apart > ROUNDING * spread:
        required = exceeded_with(LEVEL / factor / 2) + exceeded_with(1 - POWER)
        counts.append(math.ceil((required * spread / apart) ** 2))
    if margin - apart > ROUNDING * spread:
        counts.append(_equivalent(apart, margin, spread))
    return max(MIN_DOCUMENTS, n + 1, min(counts)) if counts else None


def documents_to_rule_out(value: float, margin: float, error: float | None, n: int) -> int | None:
    """Documents that would show, with probability POWER, that the difference is not above the
    margin (a one-sided test); None if it is estimated to be."""
    if error is None or value >= margin:
        return None
    required = exceeded_with(LEVEL) + exceeded_with(1 - POWER)
    return max(MIN_DOCUMENTS, math.ceil((required * error * math.sqrt(n) / (margin - value)) ** 2))


def _equivalent(apart: float, margin: float, spread: float) -> int:
    """Documents with which both one-sided tests show with probability POWER that a difference of
    `apart` is within the margin."""

    def power(n: int) -> float:
        root = math.sqrt(n) / spread
        ends = np.array([margin - apart, margin + apart]) * root - exceeded_with(LEVEL)
        return float(scipy.special.ndtr(ends).sum() - 1)

    # If one test decides alone, and if both are equally hard.
    few, many = (
        math.ceil(((exceeded_with(LEVEL) + exceeded_with(error)) * spread / (margin - apart)) ** 2)
        for error in (1 - POWER, (1 - POWER) / 2)
    )
    return few + bisect_left(range(few, many), POWER, key=power)


def exceeded_with(p: float) -> float:
    """The value that a standard normal variable exceeds with probability p."""
    return -float(scipy.special.ndtri(p))
