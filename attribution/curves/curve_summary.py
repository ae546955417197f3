"""Curves averaged over documents, with center of mass and primacy-recency index."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import (
    Estimate,
    Values,
    divided,
    intervals,
    n_groups,
    with_ends,
)
from poslens.attribution.curves.positions import POSITIONS, Resampling, positions
from poslens.attribution.curves.proportions import unless_constant
from poslens.attribution.errors import UserError
from poslens.attribution.types import N_BINS, Method, PositionCurve, as_array


@dataclass(frozen=True, slots=True)
class CurveSummary:
    """A mean curve with its center of mass and its primacy-recency index.

    Either is None if it is undefined (its denominator is zero, or the denominator's interval
    includes zero); `undefined` explains why in one sentence.
    """

    curve: PositionCurve
    center_of_mass: Estimate | None
    primacy_recency_index: Estimate | None

    @property
    def undefined(self) -> str:
        """Why a number is missing; empty if none is."""
        if self.center_of_mass is None:
            return (
                "No center of mass and no index: the sum of the curve is zero, or not "
                "significantly above it."
            )
        if self.primacy_recency_index is None:
            return (
                "No index: the sum of the curve's first and last third is zero, or not "
                "significantly above it."
            )
        return ""


_THIRD = N_BINS // 3
_COLUMNS = 10


def _sums(magnitudes: NDArray[np.floating], x: NDArray[np.floating]) -> Values:
    """Numerators and denominators of both numbers, for magnitudes [..., 100] at positions [100]:
    last minus first third, sum of both thirds, first moment, total [..., 4].

    They are linear in the bins, so those of a mean curve are the means over documents.
    """
    values = np.asarray(magnitudes, dtype=np.float64)
    if (values < 0).any():
        raise ValueError("a negative magnitude")
    first, last = values[..., :_THIRD].sum(-1), values[..., -_THIRD:].sum(-1)
    return np.stack([last - first, last + first, values @ x, values.sum(-1)], axis=-1)


def center_of_mass(
    magnitudes: NDArray[np.floating], x: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Center of mass, sum x*m / sum m, along the last axis of magnitudes m [..., 100] at positions
    `x` [100]; NaN if all are zero.

    Raises:
        ValueError: a magnitude is negative.
    """
    sums = _sums(magnitudes, x)
    return divided(sums[..., 2], sums[..., 3])


def index_sums(magnitudes: NDArray[np.floating]) -> Values:
    """The two sums [..., 2] of magnitudes [..., 100] whose means over documents give the index of
    the mean curve (their `ratio`): last third - first third, and last third + first third."""
    return _sums(magnitudes, POSITIONS)[..., :2]


def primacy_recency_index(magnitudes: NDArray[np.floating]) -> NDArray[np.float64]:
    """Primacy-recency index, (last third - first third) / (last third + first third), along the
    last axis of magnitudes [..., 100]; thirds have 33 bins. NaN if both thirds are zero.

    In [-1, 1]: negative means primacy, positive recency.

    Raises:
        ValueError: a magnitude is negative.
    """
    sums = index_sums(magnitudes)
    return divided(sums[..., 0], sums[..., 1])


def _estimate(
    sums: Values, ends: Values | None, above: int, n: int, n_documents: int
) -> Estimate | None:
    """The ratio of column `above` of mean sums [4] to the next column; `ends` [2, 2] are the
    intervals of the ratio and of its denominator; no interval if all documents have the same ratio.
    None if the denominator, or the lower end of its interval, is not positive."""
    if not sums[above + 1] > 0:
        return None
    value = float(sums[above] / sums[above + 1])
    if ends is None:
        return with_ends(value, None, n, n_documents)
    ratio, below = ends
    if not below[0] > 0:
        return None
    return unless_constant(with_ends(value, (float(ratio[0]), float(ratio[1])), n, n_documents))


def nothing_stored(model: str) -> UserError:
    """Raised if there are no curves to average."""
    return UserError(
        f"{model} has no results for these pairs yet: compute the curves (command "
        "`curve`, or the page Curves), or select other pairs."
    )


def summarize(
    curves: NDArray[np.floating],
    groups: Sequence[Hashable] | None,
    *,
    model: str,
    dataset: str,
    method: Method,
    n_truncated: int,
    n_failed: int,
    magnitudes: NDArray[np.floating] | None,
    resampling: Resampling | None = None,
) -> CurveSummary:
    """Average curves [n, 100] with bootstrap intervals over documents (seeded).

    Args:
        groups: identifies each row's document [n], for example by its text; pairs that share one
            are resampled together. None if each row has its own document.
        magnitudes: absolute values of the tokens, resampled [n, 100] (`document_magnitudes`), from
            which center of mass and index are computed; None for curves that are not made of token
            scores, which have neither.
        resampling: how the points of the curves were computed, if the method does not state it.

    There are no intervals below `bootstrap.MIN_DOCUMENTS` documents.

    Raises:
        UserError: there are no curves to average.
    """
    n = len(curves)
    if n == 0:
        raise nothing_stored(model)
    if magnitudes is not None and np.min(magnitudes) < 0:
        raise ValueError("a negative magnitude")
    how: Resampling = resampling or method.curve_params.get("resampling", "bin_mean")
    x = positions(how)
    signed = magnitudes is not None and magnitudes is not curves
    parts = [np.asarray(curves), *([np.asarray(magnitudes)] if signed else [])]
    n_documents = n_groups(n, groups)

    def numbers(means: Values) -> Values:
        """Curve [R, 100], then center of mass with its denominator and index with its
        denominator."""
        curve = means[:, :N_BINS]
        if magnitudes is None:
            return curve
        sums = _sums(means[:, -N_BINS:], x)
        center, index = (divided(sums[:, k], sums[:, k + 1]) for k in (2, 0))
        return np.column_stack([curve, center, sums[:, 3], index, sums[:, 1]])

    low = high = of_center = of_index = None
    # One call, so that curve and numbers use the same draws.
    if (interval := intervals(parts, groups, numbers)) is not None:
        low, high = (as_array(end[:N_BINS], (N_BINS,), "a curve") for end in interval)
        if magnitudes is not None:
            ends = np.stack(interval, axis=1)[N_BINS:]
            of_center, of_index = ends[:2], ends[2:]
    mean, std, quartiles = _over_rows(parts[0])
    size = mean if not signed else _over_rows(parts[1])[0]
    sums = _sums(np.zeros(N_BINS) if magnitudes is None else size, x)
    return CurveSummary(
        PositionCurve(
            model=model,
            dataset=dataset,
            method=method,
            positions=x,
            mean=as_array(mean, (N_BINS,), "a curve"),
            std=as_array(std, (N_BINS,), "a curve"),
            ci_low=low,
            ci_high=high,
            n=n,
            n_documents=n_documents,
            n_truncated=n_truncated,
            n_failed=n_failed,
            quartiles=as_array(quartiles, (3, N_BINS), "a curve"),
            magnitudes=None if magnitudes is None else as_array(size, (N_BINS,), "a curve"),
        ),
        _estimate(sums, of_center, 2, n, n_documents),
        _estimate(sums, of_index, 0, n, n_documents),
    )


def _over_rows(rows: NDArray[np.floating]) -> tuple[Values, Values, Values]:
    """Mean [100], standard deviation [100] (ddof=1; 0 for one row) and quartiles [3, 100] of rows
    [n, 100] in float64, a few columns at a time to save memory."""
    mean, std, quartiles = np.empty(N_BINS), np.zeros(N_BINS), np.empty((3, N_BINS))
    for start in range(0, N_BINS, _COLUMNS):
        some = slice(start, start + _COLUMNS)
        values = rows[:, some].astype(np.float64)
        mean[some] = values.mean(0)
        if len(values) > 1:
            std[some] = values.std(0, ddof=1)
        quartiles[:, some] = np.percentile(values, [25, 50, 75], axis=0, overwrite_input=True)
    return mean, std, quartiles
