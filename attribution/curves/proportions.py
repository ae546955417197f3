"""Intervals of proportions by formula, for independent trials and where resampling cannot vary.

All are Agresti and Coull's (1998, "Approximate is better than 'exact'").
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from poslens.attribution.curves.bootstrap import Estimate, estimate

_NAME = "Agresti-Coull"
_Z = 1.959963984540054  # 97.5% quantile of the normal distribution


def agresti_coull(successes: int, n: int) -> Estimate:
    """A proportion with its 95% Agresti-Coull interval, kept within [0, 1].

    With n' = n + z^2 and p' = (successes + z^2 / 2) / n' the interval is
    p' +- z sqrt(p' (1 - p') / n').

    Raises:
        ValueError: not 0 <= successes <= n, or n = 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}")
    total = n + _Z**2
    middle = (successes + _Z**2 / 2) / total
    half = _Z * math.sqrt(middle * (1 - middle) / total)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Estimate(successes / n, low, high, n, formula=_NAME)


def mean_share(
    values: ArrayLike, groups: Sequence[Hashable] | None = None, resampled: str = "documents"
) -> Estimate | None:
    """The mean of values [n] in [0, 1] with an interval over their `groups` (see
    `even_if_constant`); None without values.

    Raises:
        ValueError: a value is not finite.
    """
    rows = np.asarray(values, dtype=np.float64)[:, None]
    if not np.isfinite(rows).all():
        raise ValueError("a share is not finite")
    mean = estimate(rows, groups, resampled=resampled)
    return None if mean is None else even_if_constant(mean)


def even_if_constant(mean: Estimate) -> Estimate:
    """The mean of values in [0, 1]. If all are 0 or all are 1, every resample is the same, so the
    interval is Agresti and Coull's for the number of documents."""
    if mean.interval is None or mean.low != mean.high or mean.value not in (0, 1):
        return mean
    by_formula = agresti_coull(round(mean.value * mean.n_resampled), mean.n_resampled)
    return replace(mean, low=by_formula.low, high=by_formula.high, formula=_NAME)
