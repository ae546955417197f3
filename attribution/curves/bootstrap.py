"""The one bootstrap of the program: means and what is made of them, resampled by document.

Pairs that share a document are no independent draws, so whole documents are drawn, each with all
of its pairs (the cluster bootstrap; Field and Welsh 2007, "Bootstrapping clustered data"). Where
every row is a draw of its own, such as a query of a ranking, no groups are given. Very many are
put into bundles at random and the bundles are drawn: the variance of a sum of independent draws is
the sum of their variances, however they are bundled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""Makes one number [R] of each mean row [R, K]; NaN where it is not defined."""

N_BOOTSTRAP = 1000
SEED = 20260101
MAX_DRAWS = 10_000
"""Beyond so many documents they are drawn in as many bundles, put together at random."""
_ROWS = 50_000
_KEPT = 500_000
"""Draws are kept of up to so many documents times resamples, 4 MB: a page asks for tens of
intervals over the same ones, and drawing takes most of each."""
MIN_DOCUMENTS = 10
"""Below so many documents a number has no interval: resampling a few says little of the rest."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic of `n` rows with its 95% interval, which resamples `n_resampled` of `resampled`.

    `low` and `high` are None where there are too few to resample. `resampled` is empty where the
    interval comes from a formula.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    n_resampled: int = 0
    resampled: str = "documents"

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __str__(self) -> str:
        return self.text()

    def text(self, form: str = ".3f") -> str:
        """`value [low, high]`, each in this format; the value alone without an interval."""
        if self.interval is None:
            return format(self.value, form)
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


def numbered(groups: Sequence[Hashable]) -> NDArray[np.int64]:
    """Group names as numbers [n] from 0, in order of first appearance."""
    order: dict[Hashable, int] = {}
    return np.array([order.setdefault(group, len(order)) for group in groups], dtype=np.int64)


def _summed(
    parts: Sequence[NDArray[np.floating]],
    index: NDArray[np.int64],
    n: int,
    of: Callable[[Values], Values],
) -> Values:
    """Sums [n, K] of what `of` makes of the rows of each of n draws, in float64; `parts` are
    columns side by side. A piece at a time: a million curves twice over would be most of a
    machine's memory."""
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(n + 1))
    sums: list[Values] = []
    step = max(1, n * _ROWS // max(len(index), 1))
    for first in range(0, n, step):
        edges = starts[first : first + step + 1]
        rows = order[edges[0] : edges[-1]]
        piece = np.concatenate([part[rows] for part in parts], axis=1, dtype=np.float64)
        sums.append(np.add.reduceat(of(piece), edges[:-1] - edges[0]))
    return np.concatenate(sums)


def bootstrap_means(
    rows: NDArray[np.floating] | Sequence[NDArray[np.floating]],
    groups: Sequence[Hashable] | None = None,
    n_resamples: int = N_BOOTSTRAP,
    seed: int = SEED,
    of: Callable[[Values], Values] = lambda some: some,
) -> Values:
    """Means [R, K] of rows [n, K], or of several such side by side, after drawing groups with
    replacement (seeded); of what `of` makes of them, some rows at a time, where it is given.

    A group that is drawn brings all its rows, so a mean is over as many rows as its draw has.
    Counting how often each group was drawn and multiplying is the same as indexing, without an
    [R, n, K] array; tests compare with scipy.stats.bootstrap and with a plain loop over groups.
    More than MAX_DRAWS groups are bundled at random (seeded) first.
    """
    parts = [rows] if isinstance(rows, np.ndarray) else list(rows)
    index = np.arange(len(parts[0])) if groups is None else numbered(groups)
    if len(index) != len(parts[0]):
        raise ValueError(f"{len(index)} groups for {len(parts[0])} rows")
    n = int(index.max()) + 1
    generator = np.random.default_rng(seed)
    if n > MAX_DRAWS:
        order = generator.permutation(n)
        starts = np.linspace(0, n, MAX_DRAWS, endpoint=False).astype(np.int64)
        bundle = np.empty(n, np.int64)
        bundle[order] = np.repeat(np.arange(MAX_DRAWS), np.diff(starts, append=n))
        index, n = bundle[index], MAX_DRAWS
    sizes = np.bincount(index).astype(np.float64)
    values = _summed(parts, index, n, of)
    if n * n_resamples <= _KEPT:
        counts = _kept_counts(n, n_resamples, seed)
        return counts @ values / (counts @ sizes)[:, None]
    # 64 MiB of counts at a time, however many documents there are.
    at_once = max(1, min(n_resamples, 8_000_000 // n))
    means = []
    for start in range(0, n_resamples, at_once):
        counts = _counts(generator, min(at_once, n_resamples - start), n)
        means.append(counts @ values / (counts @ sizes)[:, None])
    return np.concatenate(means)


def _counts(generator: np.random.Generator, n_resamples: int, n: int) -> Values:
    """How often each of n groups is drawn in each resample [n_resamples, n]."""
    # As floats, so that BLAS multiplies; `multinomial` takes eight times as long for 42,000.
    counts = np.empty((n_resamples, n))
    # Few documents: many resamples are counted in one call, each in places of its own.
    for some in np.array_split(counts, max(1, counts.size // 100_000)):
        drawn = generator.integers(0, n, some.shape, np.int32)
        own = drawn + n * np.arange(len(some))[:, None]
        some[:] = np.bincount(own.ravel(), minlength=some.size).reshape(some.shape)
    return counts


@lru_cache(maxsize=8)
def _kept_counts(n: int, n_resamples: int, seed: int) -> Values:
    """The same from this seed on; what is drawn depends on nothing else. Read-only."""
    counts = _counts(np.random.default_rng(seed), n_resamples, n)
    counts.flags.writeable = False
    return counts


def percentiles(resampled: Values) -> tuple[Values, Values]:
    """Lower and upper end of the 95% percentile interval along the first axis."""
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    return low, high


def n_groups(n: int, groups: Sequence[Hashable] | None) -> int:
    """How many draws the rows are."""
    return n if groups is None else len(set(groups))


def band(
    rows: NDArray[np.floating], groups: Sequence[Hashable] | None = None
) -> tuple[Values, Values] | None:
    """95% interval [K], [K] of the mean of rows [n, K]; None below MIN_DOCUMENTS groups."""
    if n_groups(len(rows), groups) < MIN_DOCUMENTS:
        return None
    return percentiles(bootstrap_means(rows, groups))


def estimate(
    rows: NDArray[np.floating],
    groups: Sequence[Hashable] | None = None,
    statistic: Statistic = lambda means: means[:, 0],
    *,
    resampled: str = "documents",
    n_resamples: int = N_BOOTSTRAP,
) -> Estimate | None:
    """A statistic of the mean of rows [n, K] with its interval; None where it is not defined.

    The interval is over the resamples in which the statistic is defined, and is left out below
    MIN_DOCUMENTS groups.
    """
    values = np.asarray(rows, dtype=np.float64)
    if not len(values):
        return None
    value = float(statistic(values.mean(0, keepdims=True))[0])
    if not np.isfinite(value):
        return None
    n = n_groups(len(values), groups)
    if n >= MIN_DOCUMENTS:
        drawn = statistic(bootstrap_means(values, groups, n_resamples))
        drawn = drawn[np.isfinite(drawn)]
        if len(drawn):
            low, high = percentiles(drawn)
            return Estimate(value, float(low), float(high), len(values), n, resampled)
    return Estimate(value, None, None, len(values), n, resampled)
