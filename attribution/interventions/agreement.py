"""Agreement: rank correlation of a method's curves with causal curves.

There are two numbers: the correlation of each pair's curve with its own causal curve, averaged over
pairs; and the correlation of the mean curve with the mean causal curve, which is what a chart of a
data set shows. In a single document the positions of relevant words outweigh any bias; means over
many documents average them out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import Estimate, Values, estimate
from poslens.attribution.curves.positions import rank_correlation, rank_correlations, resample
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.relocation import Relocation

N_GRID = 11
"""Positions at which causal curves of different documents are averaged and correlated."""


def averaged(
    curve: NDArray[np.floating], edges: NDArray[np.floating], share: float = 1.0
) -> Values:
    """Means of a curve [100] over cells [K] between `edges` [K + 1], as shares of the document.

    The curve covers the first `share` of the document; cells beyond it are NaN.
    """
    values = np.asarray(curve, dtype=np.float64)
    n = len(values)
    filled = np.concatenate(([0.0], np.cumsum(values))) / n
    at = np.clip(np.asarray(edges, dtype=np.float64) / share, 0.0, 1.0)
    total = np.interp(at, np.arange(n + 1) / n, filled)
    width = np.diff(at)
    density: NDArray[np.float64] = np.full(width.shape, np.nan)
    return np.divide(np.diff(total), width, out=density, where=width > 1e-9)


def cells(positions: NDArray[np.floating]) -> Values:
    """Edges [K + 1], midway between positions [K], from 0 to 1."""
    at = np.asarray(positions, dtype=np.float64)
    return np.concatenate(([0.0], (at[1:] + at[:-1]) / 2, [1.0]))


def causal_correlation(curve: NDArray[np.floating], effect: Relocation | Ablation) -> float | None:
    """Spearman correlation of a curve [100] with the effects of the parts, or with the relocation
    curve over the positions where the evidence was read whole; None for fewer than 3 of them or if
    either is constant."""
    if isinstance(effect, Ablation):
        return rank_correlation(averaged(curve, effect.edges), effect.effects.astype(np.float64))
    at = averaged(curve, cells(effect.positions), effect.read_share)
    return rank_correlation(at[effect.whole], effect.changes)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a method's curves with causal curves of a model, over `n` pairs of `n_documents`
    documents; in `n_truncated` pairs the document was truncated. `n_left_out` further pairs have
    evidence read whole at fewer than two of the positions that it moves to.

    `each` is the mean of the pairs' correlations; `means` is the correlation of the mean curve with
    the mean causal curve at 11 positions. Intervals resample documents. Either is None if it is
    undefined (the causal curve of a model without position is constant).
    """

    model: str
    n: int
    n_documents: int
    n_truncated: int
    n_left_out: int
    each: Estimate | None
    means: Estimate | None


def agreement(
    model: str,
    curves: Sequence[NDArray[np.floating]],
    causal: Sequence[Relocation | Ablation],
    groups: Sequence[Hashable],
) -> Agreement:
    """Compare curves [n, 100] with relocation or ablation of the same pairs. `groups` [n] are the
    pairs' documents."""
    rows: list[tuple[Hashable, float | None, Values]] = []
    n_truncated = 0
    for curve, effect, group in zip(curves, causal, groups, strict=True):
        if (causal_curve := effect.curve(N_GRID)) is not None:
            both = np.concatenate([resample(np.asarray(curve), "bin_mean", N_GRID), causal_curve])
            rows.append((group, causal_correlation(curve, effect), both))
            n_truncated += effect.read_share < 1

    def correlate(means: Values) -> Values:
        return rank_correlations(means[:, :N_GRID], means[:, N_GRID:])

    documents, pooled = [group for group, _, _ in rows], np.array([both for *_, both in rows])
    defined = [(group, value) for group, value, _ in rows if value is not None]
    return Agreement(
        model,
        len(rows),
        len(set(documents)),
        n_truncated,
        len(curves) - len(rows),
        estimate(np.array([[value] for _, value in defined]), [group for group, _ in defined]),
        # 300 resamples: a rank correlation over 11 positions is no finer.
        estimate(pooled, documents, correlate, kind="percentile", n_resamples=300)
        if len(rows) > 1
        else None,
    )
