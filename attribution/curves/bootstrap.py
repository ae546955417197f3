"""Confidence intervals of means, and of statistics of means, by resampling documents.

Pairs that share a document are not independent, so whole documents are drawn, each with all of its
pairs (the cluster bootstrap; Field and Welsh 2007, "Bootstrapping clustered data"). Without groups,
single rows are drawn. Very many documents are first grouped into bundles at random, and bundles are
drawn: the variance of a sum of independent draws is the sum of their variances, whatever the
bundles.

Intervals are bias-corrected and accelerated (BCa; Efron 1987, "Better bootstrap confidence
intervals"). Bootstrap intervals of few draws are too narrow, so their tails are those of Student's
t (Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3), with fewer
degrees of freedom if a few documents have most of the pairs (Kish 1965). BCa assumes a smooth
statistic; minima, maxima and ranks get percentile intervals with the same tails.
`bench/coverage.py` measures how often intervals contain the true value.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy  # loads scipy.special at its first use
from numpy.typing import NDArray

from poslens.attribution.nouns import interval_text, number_text
from poslens.attribution.pairs import numbered as numbered

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""Maps mean rows [R, K] to one number per row [R] or several [R, J]; NaN where undefined."""

Kind = Literal["bca", "percentile", "upper"]
"""Kind of interval: BCa; percentile, for statistics that are not smooth; or one-sided from 0, for
statistics that cannot be negative and that noise increases."""

N_BOOTSTRAP = 1000
SEED = 20260101
MAX_DRAWS = 10_000
"""Maximum number of resampled units; more documents are grouped into as many bundles at random."""
_ROWS = 50_000
_KEPT = 500_000
"""Draws are cached up to this many documents times resamples, 4 MB: a page computes tens of
intervals over the same documents, and drawing takes most of the time."""
MIN_DOCUMENTS = 10
"""Estimates from fewer documents have no interval, because resampling so few is unreliable."""
_ROUNDING = 1e-12
"""Relative tolerance (absolute below 1) at which two values count as equal."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic of `n` rows with its 95% interval, which resamples `n_resampled` units;
    `resampled` names the units. If the interval comes from a formula instead, `formula` names it.

    `low` and `high` are None if there are too few units to resample, or if the interval would not
    contain the estimate.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    n_resampled: int = 0
    resampled: str = "documents"
    formula: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None without an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def times(self, factor: float) -> Estimate:
        """The estimate and its interval multiplied by `factor`; -1 reverses a difference."""
        # Plus 0.0: no negative zero.
        low, high = (None if end is None else factor * end + 0.0 for end in (self.low, self.high))
        if factor < 0:
            low, high = high, low
        return replace(self, value=factor * self.value + 0.0, low=low, high=high)

    def __str__(self) -> str:
        return self.text()

    def text(self, form: str = ".3f") -> str:
        """`value [low, high]` in this number format; only the value if there is no interval."""
        value = number_text(self.value, form)
        return value if self.interval is None else f"{value} {interval_text(*self.interval, form)}"


def _summed(
    parts: Sequence[NDArray[np.floating]],
    index: NDArray[np.int64],
    n: int,
    of: Callable[[Values], Values],
) -> Values:
    """Sums [n, K] over the rows of each of n groups, in float64, after `of` is applied to the rows;
    `parts` are joined as columns. Computed in pieces, because two copies of a million curves would
    use most of a machine's memory."""
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


@dataclass(frozen=True, slots=True)
class _Draws:
    """The resampled units: sums [n, K] over the rows of each of n documents or bundles, and the
    number of items of each [n]. `n_documents` as `_with_items` counts them. The generator that
    formed the bundles also makes the draws."""

    sums: Values
    sizes: Values
    n_documents: int
    generator: np.random.Generator

    def means(self, n_resamples: int) -> Values:
        """Means [n_resamples, K] of draws with replacement.

        A drawn document brings all its items, so a mean is over as many as were drawn. Counting
        how often each document was drawn and multiplying equals indexing, without an [R, n, K]
        array.
        """
        n = len(self.sizes)
        if n * n_resamples <= _KEPT:
            counts = _kept_counts(n, n_resamples)
            return _per_item(counts @ self.sums, counts @ self.sizes)
        # 64 MiB of counts at a time, for any number of documents.
        at_once = max(1, min(n_resamples, 8_000_000 // n))
        arrays = []
        for start in range(0, n_resamples, at_once):
            counts = _counts(self.generator, min(at_once, n_resamples - start), n)
            arrays.append(_per_item(counts @ self.sums, counts @ self.sizes))
        return np.concatenate(arrays)

    @property
    def effective(self) -> float:
        """See `effective_size`."""
        return effective_size(self.sizes)

    @property
    def all_but_one(self) -> Values:
        """Means [n, K] without each document in turn (jackknife)."""
        total, sizes = self.sums.sum(0), self.sizes
        return _per_item(total - self.sums, sizes.sum() - sizes)


def _per_item(sums: Values, sizes: Values) -> Values:
    """Sums [R, K] divided by numbers of items [R]; NaN where there are none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / sizes[:, None])


def _draws(
    rows: NDArray[np.floating] | Sequence[NDArray[np.floating]],
    groups: Sequence[Hashable] | None,
    of: Callable[[Values], Values] = lambda some: some,
    counts: Values | None = None,
) -> _Draws:
    parts = [rows] if isinstance(rows, np.ndarray) else list(rows)
    index = np.arange(len(parts[0])) if groups is None else numbered(groups)
    if len(index) != len(parts[0]):
        raise ValueError(f"{len(index)} groups for {len(parts[0])} rows")
    n = int(index.max()) + 1
    generator = np.random.default_rng(SEED)
    items = None if counts is None else _parts(counts).sum(1)
    n_documents = n if counts is None else _with_items(index, counts)
    if n > MAX_DRAWS:
        order = generator.permutation(n)
        starts = np.linspace(0, n, MAX_DRAWS, endpoint=False).astype(np.int64)
        bundle = np.empty(n, np.int64)
        bundle[order] = np.repeat(np.arange(MAX_DRAWS), np.diff(starts, append=n))
        index, n = bundle[index], MAX_DRAWS
    sizes = np.bincount(index, items, n).astype(np.float64)
    sums = _summed(parts, index, n, of)
    if not (filled := sizes > 0).all():  # a document without items would be drawn in vain
        sums, sizes = sums[filled], sizes[filled]
    return _Draws(sums, sizes, n_documents, generator)


def _parts(counts: Values) -> Values:
    """Numbers of items as columns [n, parts]."""
    return np.reshape(counts, (len(counts), -1))


def _with_items(index: NDArray[np.int64], counts: Values) -> int:
    """How many documents have items; if fewer than MIN_DOCUMENTS have items of one part, how many
    these are. `index` [n] are the documents of the rows, `counts` as in `intervals`."""
    has_items = _parts(counts) > 0
    fewest = min(len(np.unique(index[part])) for part in has_items.T)
    return fewest if fewest < MIN_DOCUMENTS else len(np.unique(index[has_items.any(1)]))


def _counts(generator: np.random.Generator, n_resamples: int, n: int) -> Values:
    """How often each of n groups is drawn in each resample [n_resamples, n]."""
    # Floats, so that products use BLAS; `multinomial` takes eight times as long for n = 42,000.
    counts = np.empty((n_resamples, n))
    # Few documents: many resamples are counted in one call, each with its own range of indices.
    for some in np.array_split(counts, max(1, counts.size // 100_000)):
        drawn = generator.integers(0, n, some.shape, np.int32)
        shifted = drawn + n * np.arange(len(some))[:, None]
        some[:] = np.bincount(shifted.ravel(), minlength=some.size).reshape(some.shape)
    return counts


@lru_cache(maxsize=8)
def _kept_counts(n: int, n_resamples: int) -> Values:
    """Counts that depend only on the arguments. Read-only."""
    counts = _counts(np.random.default_rng(SEED), n_resamples, n)
    counts.flags.writeable = False
    return counts


def effective_size(sizes: NDArray[np.number]) -> float:
    """The number of documents of equal size that weigh like those with these numbers of rows [n]:
    n if all have as many (Kish 1965, "Survey Sampling")."""
    weights = np.asarray(sizes, dtype=np.float64)
    return float(weights.sum() ** 2 / (weights**2).sum())


def n_groups(n: int, groups: Sequence[Hashable] | None, counts: Values | None = None) -> int:
    """The number of resampled units of n rows, or of those that have items (`_with_items`)."""
    if counts is not None:
        return _with_items(np.arange(n) if groups is None else numbered(groups), counts)
    return n if groups is None else len(set(groups))


def intervals(
    rows: NDArray[np.floating] | Sequence[NDArray[np.floating]],
    groups: Sequence[Hashable] | None = None,
    statistic: Statistic = lambda means: means,
    *,
    of: Callable[[Values], Values] = lambda some: some,
    counts: Values | None = None,
    kind: Kind = "bca",
    n_resamples: int = N_BOOTSTRAP,
    level: float = 0.95,
) -> tuple[Values, Values] | None:
    """Intervals ([J], [J]) of a statistic of the mean of rows; None below MIN_DOCUMENTS groups.

    Args:
        rows: [n, K], or several arrays whose columns are joined.
        groups: the documents of the rows [n]; None to resample single rows.
        statistic: maps means [R, K] to [R, J]; resamples in which it is NaN are excluded.
        of: applied to the rows, in pieces, before they are summed.
        counts: the number of items, such as sentences, that each row sums [n], or the numbers in
            each of several parts that are compared [n, parts]; by default 1. The statistic must not
            depend on their scale, as `ratio` doesn't. There is no interval if fewer than
            MIN_DOCUMENTS groups have items of one part.
        kind: see `Kind`.
        level: nominal coverage of the intervals, in (0, 1).

    An end is NaN if the statistic is undefined or the interval would not contain the estimate. More
    than MAX_DRAWS groups are first bundled at random. Everything is seeded.
    """
    draws = _draws(rows, groups, of, counts)
    if draws.n_documents < MIN_DOCUMENTS:
        return None
    value, drawn, bias, acceleration = _resampled(draws, statistic, kind, n_resamples)
    n_finite = np.isfinite(drawn).sum(0)
    tail = _tail(draws.effective, (1 - level) / (1 if kind == "upper" else 2))
    low, high = (
        _quantile(drawn, n_finite, scipy.special.ndtr(bias + z / (1 - acceleration * z)))
        for z in (bias - tail, bias + tail)
    )
    if kind == "upper":
        low = np.zeros(len(value))
    inside = (low <= value) & (value <= high)
    return np.where(inside, low, np.nan), np.where(inside, high, np.nan)


def _resampled(
    draws: _Draws, statistic: Statistic, kind: Kind, n_resamples: int
) -> tuple[Values, Values, Values, Values]:
    """A statistic [J], its sorted resamples [R, J] with NaN last, and bias and acceleration [J] of
    BCa, zeros for other kinds."""
    value = statistic((draws.sums.sum(0) / draws.sizes.sum())[None])[0]
    drawn = statistic(draws.means(n_resamples))
    equal = np.abs(drawn - value) <= _ROUNDING * np.maximum(1, np.abs(value))
    drawn = np.sort(np.where(equal, value, drawn), axis=0)
    bias = acceleration = np.zeros(len(value))
    if kind == "bca":
        bias = scipy.special.ndtri(_share_below(drawn, value))
        acceleration = _acceleration(statistic(draws.all_but_one))
    return value, drawn, bias, acceleration


def _share_below(drawn: Values, value: Values) -> Values:
    """Share of resamples [R, J] below a value [J]. Ties count half; the share is clipped so that at
    least half a resample is on either side, because no end lies beyond the resamples."""
    n_finite = np.maximum(np.isfinite(drawn).sum(0), 1)
    below = ((drawn < value).sum(0) + (drawn <= value).sum(0)) / 2
    return np.asarray(np.clip(below, 0.5, n_finite - 0.5) / n_finite)


def p_value(
    rows: NDArray[np.floating],
    groups: Sequence[Hashable] | None = None,
    statistic: Statistic = lambda means: means[:, 0],
    *,
    counts: Values | None = None,
    kind: Kind = "bca",
) -> float | None:
    """Two-sided p value of a statistic that is 0 without an effect. None below MIN_DOCUMENTS
    groups, or if the statistic is undefined. `counts` as in `intervals`.

    For a smooth statistic (kind `bca`), Student's t with `standard_error` and one degree of freedom
    fewer than documents, counted as if of equal size; for a mean of one row per document, that is
    the paired t-test. Where most documents don't differ at all, p values from
    a bootstrap are far too small (`bench/coverage.py`). For other kinds, 1 minus the level at which
    the interval touches 0, or Student's t if no resample is beyond 0.
    """
    draws = _draws(rows, groups, counts=counts)
    if draws.n_documents < MIN_DOCUMENTS:
        return None
    value = float(statistic((draws.sums.sum(0) / draws.sizes.sum())[None])[0])
    if not np.isfinite(value):
        return None
    if not value:
        return 1.0
    degrees = draws.effective - 1
    if kind != "bca":
        _, drawn, *_ = _resampled(draws, lambda means: statistic(means)[:, None], kind, N_BOOTSTRAP)
        share = float(_share_below(drawn, np.zeros(1))[0])
        if 0.5 < share * len(drawn) < len(drawn) - 0.5:
            reach = max(-np.sign(value) * scipy.special.ndtri(share), 0.0)
            t = reach / np.sqrt(draws.effective / degrees)
            return float(2 * scipy.special.stdtr(degrees, -t))
    error = jackknife_error(statistic(draws.all_but_one))
    if error is None:
        return None
    return float(2 * scipy.special.stdtr(degrees, -abs(value) / error)) if error else 0.0


def standard_error(
    rows: NDArray[np.floating],
    groups: Sequence[Hashable] | None = None,
    statistic: Statistic = lambda means: means[:, 0],
) -> float | None:
    """Standard error of a smooth statistic of the mean of rows [n, K], by the jackknife over
    documents (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", equation 11.5). None
    for fewer than two documents, or if the statistic is undefined without one of them."""
    draws = _draws(rows, groups)
    if len(draws.sizes) < 2:
        return None
    return jackknife_error(statistic(draws.all_but_one))


def jackknife_error(without: Values) -> float | None:
    """Standard error by the jackknife, from a statistic without each of n documents in turn [n].
    None for fewer than two documents, or if a value is undefined."""
    n = len(without)
    if n < 2 or not np.isfinite(without).all():
        return None
    return float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))


def _tail(n: float, probability: float) -> float:
    """Replacement of the normal quantile by a tail of Student's t with n draws: t (n - 1 degrees of
    freedom) times sqrt(n / (n - 1)), because resampling divides by n and t by n - 1."""
    return float(scipy.special.stdtrit(n - 1, 1 - probability) * np.sqrt(n / (n - 1)))


def _acceleration(all_but_one: Values) -> Values:
    """Acceleration [J] from a statistic without each document in turn [n, J] (Efron 1987, equation
    6.6, by the jackknife); NaN values are ignored."""
    defined = np.maximum(np.isfinite(all_but_one).sum(0), 1)
    less = np.nansum(all_but_one, axis=0) / defined - all_but_one
    spread, skew = np.nansum(less**2, axis=0) ** 1.5, np.nansum(less**3, axis=0)
    acceleration = np.divide(skew, 6 * spread, out=np.zeros_like(skew), where=spread > 0)
    return np.asarray(acceleration, dtype=np.float64)


def _quantile(ordered: Values, n: NDArray[np.int64], level: Values) -> Values:
    """Quantiles [J] of the first n [J] of sorted values [R, J], linearly interpolated."""
    last = np.maximum(n - 1, 0)
    at = level * last
    before = at.astype(np.int64)
    columns = np.arange(ordered.shape[1])
    low, high = ordered[before, columns], ordered[np.minimum(before + 1, last), columns]
    return np.asarray(low + (at - before) * (high - low))


def interval(
    rows: NDArray[np.floating],
    groups: Sequence[Hashable] | None,
    statistic: Statistic,
    *,
    counts: Values | None = None,
    kind: Kind = "bca",
    n_resamples: int = N_BOOTSTRAP,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """`intervals` of a statistic of one number; None also if an end is NaN."""
    ends = intervals(
        rows,
        groups,
        lambda means: statistic(means)[:, None],
        counts=counts,
        kind=kind,
        n_resamples=n_resamples,
        level=level,
    )
    if ends is None or not np.isfinite(ends).all():
        return None
    return float(ends[0][0]), float(ends[1][0])


def estimate(
    rows: NDArray[np.floating],
    groups: Sequence[Hashable] | None = None,
    statistic: Statistic = lambda means: means[:, 0],
    *,
    counts: Values | None = None,
    resampled: str = "documents",
    kind: Kind = "bca",
    n_resamples: int = N_BOOTSTRAP,
) -> Estimate | None:
    """A statistic of the mean of rows [n, K] with its interval; None if it is undefined. `counts`
    as in `intervals`."""
    values = np.asarray(rows, dtype=np.float64)
    if not len(values):
        return None
    value = float(statistic(values.mean(0, keepdims=True))[0])
    if not np.isfinite(value):
        return None
    ends = interval(values, groups, statistic, counts=counts, kind=kind, n_resamples=n_resamples)
    return with_ends(value, ends, len(values), n_groups(len(values), groups, counts), resampled)


def estimates(rows: Values, groups: Sequence[Hashable]) -> list[Estimate]:
    """The mean of each column of rows [n, K] with its interval, all over the same resamples.
    Empty without rows."""
    if not len(rows):
        return []
    columns = intervals(rows, groups)
    ends = [None] * rows.shape[1] if columns is None else zip(*columns, strict=True)
    n, n_documents = len(rows), n_groups(len(rows), groups)
    return [
        with_ends(float(mean), bounds, n, n_documents)
        for mean, bounds in zip(rows.mean(0), ends, strict=True)
    ]


def with_ends(
    value: float,
    ends: tuple[float, float] | None,
    n: int,
    n_resampled: int,
    resampled: str = "documents",
) -> Estimate:
    """An estimate with ends from `intervals`; no interval if they are None or NaN."""
    if ends is None or not np.isfinite(ends).all():
        return Estimate(value, None, None, n, n_resampled, resampled)
    # The estimate can differ from the interval's sums by rounding.
    low, high = min(ends[0], value), max(ends[1], value)
    return Estimate(value, low, high, n, n_resampled, resampled)


# -- statistics and random numbers -----------------------------------------------------------------


def divided(over: Values, under: Values) -> Values:
    """`over` divided by `under`, element by element; NaN where `under` is not positive."""
    ratio: Values = np.divide(over, under, out=np.full(under.shape, np.nan), where=under > 0)
    return ratio


def ratios(means: Values) -> Values:
    """The first half of the columns [R, 2 K] over the second [R, K], such as sums over counts; NaN
    where that is 0."""
    return divided(*np.split(means, 2, axis=1))


def ratio(means: Values) -> Values:
    """`ratios` of two columns [R, 2]: [R]."""
    return ratios(means)[:, 0]


def ratio_difference(means: Values) -> Values:
    """The first of two `ratios` minus the second [R], from four columns [R, 4]."""
    first, second = ratios(means).T
    return np.asarray(first - second)


def generator_for(text: str, seed: int = SEED, *more: int) -> np.random.Generator:
    """Random numbers that depend on the text and the seeds alone."""
    return np.random.default_rng([seed, zlib.crc32(text.encode("utf-8", "replace")), *more])
