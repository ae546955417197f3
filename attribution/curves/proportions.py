"""Intervals of proportions by formula, for trials and where resampling cannot vary.

All are Agresti and Coull's (1998, "Approximate is better than 'exact'").
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import scipy  # loads scipy.special at its first use
from numpy.typing import ArrayLike

from poslens.attribution.curves.bootstrap import (
    Estimate,
    Values,
    effective_size,
    estimate,
    numbered,
    standard_error,
)

AGRESTI_COULL = "Agresti-Coull"
_ROUNDING = 1e-12
"""Relative width (absolute below 1) up to which an interval has none."""
_P = 0.975
_Z = 1.959963984540054  # quantile of the normal distribution


def agresti_coull(successes: int, n: int, independent: float | None = None) -> Estimate:
    """A proportion with its 95% Agresti-Coull interval, kept within [0, 1].

    With n' = n + z^2 and p' = (successes + z^2 / 2) / n' the interval is
    p' +- z sqrt(p' (1 - p') / n'). If trials are not independent, `independent` is the number of
    independent trials that tell as much; the interval is that of as many with the same proportion.

    Raises:
        ValueError: not 0 <= successes <= n, or n = 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}")
    share, size = successes / n, n if independent is None else independent
    total = size + _Z**2
    middle = (share * size + _Z**2 / 2) / total
    half = _Z * math.sqrt(middle * (1 - middle) / total)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Estimate(share, low, high, n, formula=AGRESTI_COULL)


def clustered_proportion(
    successes: ArrayLike, documents: Sequence[Hashable], others: Sequence[Hashable] = ()
) -> Estimate:
    """A proportion of trials [n] (0 or 1), of which those of one document depend on each other,
    with its Agresti-Coull interval for as many independent trials as give the same standard error
    (Dean and Pagano 2015, "Evaluating confidence interval methods for binomial proportions in
    clustered surveys"), fewer with few documents, whose standard error is uncertain (Korn and
    Graubard 1998, "Confidence intervals for proportions with small expected number of positive
    counts estimated from survey data"). That is n if each trial has its own document; if all trials
    succeed or all fail, it is the number of documents. With `others`, trials also depend on those
    with the same value there: variances over both groupings are added, less that over trials
    (Cameron, Gelbach and Miller 2011).

    Raises:
        ValueError: no trials.
    """
    rows = np.asarray(successes, dtype=np.float64)[:, None]
    n, n_successes = len(rows), int(rows.sum())
    groupings = [groups for groups in (documents, others) if len(groups)]
    alone = min((len(set(groups)) for groups in groupings), default=n)
    if alone == n or n_successes in (0, n):
        return agresti_coull(n_successes, n, alone)
    if alone == 1:  # which tells as much as one trial
        return agresti_coull(n_successes, n, 1)
    *over_groups, over_trials = (
        _half_width(rows, groups) ** 2 for groups in (*groupings, range(n))
    )
    variance = sum(over_groups) - over_trials * (len(over_groups) - 1)
    effect = max(variance, *over_groups) / over_trials
    return agresti_coull(n_successes, n, n / max(1.0, effect))


def _half_width(rows: Values, groups: Sequence[Hashable]) -> float:
    """Half the width of Student's t interval of a mean of rows [n, 1], over groups that count as if
    of equal size."""
    degrees = max(1.0, effective_size(np.bincount(numbered(groups))) - 1)
    error = standard_error(rows, groups)
    return 0.0 if error is None else error * float(scipy.special.stdtrit(degrees, _P))


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
    return replace(mean, low=by_formula.low, high=by_formula.high, formula=AGRESTI_COULL)


def unless_constant(estimate: Estimate | None) -> Estimate | None:
    """The estimate without an interval if that has no width: if all documents have the same value,
    no resample shows how much others can differ, and only shares have a formula for that."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    constant = estimate.high - estimate.low <= _ROUNDING * max(1.0, abs(estimate.value))
    return replace(estimate, low=None, high=None) if constant else estimate
