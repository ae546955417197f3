"""Does a curve say what the score really did? Rank correlation of curves with causal curves.

Two questions, two numbers: of each pair's curve with its own causal curve, averaged over pairs;
and of the mean curve with the mean causal curve, what a chart of a data set shows. In one document
the places of relevant words weigh more than any bias; means over many documents leave the bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attribution.bootstrap import SEED, Estimate, bootstrap_means
from attribution.errors import UserError
from attribution.interventions.ablation import Ablation
from attribution.interventions.relocation import Relocation
from attribution.position import POSITIONS, rank_correlation, resample
from attribution.types import Array, Method, as_array

Values = NDArray[np.float64]
N_GRID = 11
"""Places at which causal curves of different documents are averaged and correlated."""


def averaged(
    curve: NDArray[np.floating], edges: NDArray[np.floating], share: float = 1.0
) -> Values:
    """Means of a curve [100] over cells [K] between `edges` [K + 1], shares of the document.

    The curve is over the first `share` of the document; a cell that lies beyond is NaN.
    """
    values = np.asarray(curve, dtype=np.float64)
    n = len(values)
    filled = np.concatenate(([0.0], np.cumsum(values))) / n
    at = np.clip(np.asarray(edges, dtype=np.float64) / share, 0.0, 1.0)
    total = np.interp(at, np.arange(n + 1) / n, filled)
    width = np.diff(at)
    return np.divide(np.diff(total), width, out=np.full(width.shape, np.nan), where=width > 1e-9)


def cells(positions: NDArray[np.floating]) -> Values:
    """Edges [K + 1] half-way between positions [K], from 0 to 1."""
    at = np.asarray(positions, dtype=np.float64)
    return np.concatenate(([0.0], (at[1:] + at[:-1]) / 2, [1.0]))


def with_relocation(curve: NDArray[np.floating], found: Relocation) -> float | None:
    """Spearman correlation of a curve [100] with the causal curve, over the places where the
    evidence was read; None for under 3 places or where either is constant."""
    scores = np.where(found.read > 0.5, found.scores, np.nan).astype(np.float64)
    return rank_correlation(averaged(curve, cells(found.positions), found.read_share), scores)


def with_ablation(curve: NDArray[np.floating], found: Ablation) -> float | None:
    """Spearman correlation of a curve [100] with the effects of the parts."""
    return rank_correlation(averaged(curve, found.edges), found.effects.astype(np.float64))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Mean with its 95% bootstrap interval over pairs (seeded).

    Raises:
        UserError: there is no value.
    """
    if not len(values):
        raise UserError("No pair has both curves yet: compute them first.")
    column = np.asarray(values, dtype=np.float64)[:, None]
    low, high = np.percentile(bootstrap_means(column), [2.5, 97.5])
    return Estimate(float(column.mean()), float(low), float(high))


def relocation_curve(found: Relocation, places: int = 100) -> Array:
    """A causal curve at `places` evenly spaced positions of the document, as differences from the
    mean over its places: what a place adds, in the score's units. Linear between places,
    constant beyond the first and the last."""
    at = np.linspace(0, 1, places) if places != 100 else POSITIONS
    curve = np.interp(at, found.positions, found.scores)
    return as_array(curve - curve.mean(), (places,), "a curve")


def ablation_curve(found: Ablation) -> Array:
    """Effects at 100 points of what was read."""
    return found.curve(100)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a method's curves agree with causal curves of a model, over `n` pairs.

    `each` is the mean of the pairs' correlations; `means` the correlation of the mean curve with
    the mean causal curve at 11 places, resampled over pairs. Either is None where it is not
    defined (a position-blind model's causal curve is constant).
    """

    model: str
    method: Method
    n: int
    each: Estimate | None
    means: Estimate | None


def agreement(
    model: str,
    method: Method,
    curves: Sequence[NDArray[np.floating]],
    causal: Sequence[Relocation] | Sequence[Ablation],
) -> Agreement:
    """Compare curves [n, 100] with what moving or taking out did to the same pairs."""
    each: list[float] = []
    rows = []
    both: Iterable[tuple[NDArray[np.floating], Relocation | Ablation]]
    both = zip(curves, causal, strict=True)
    for curve, found in both:
        if isinstance(found, Relocation):
            value = with_relocation(curve, found)
            own = relocation_curve(found, N_GRID)
        else:
            value, own = with_ablation(curve, found), found.curve(N_GRID)
        if value is not None:
            each.append(value)
        rows.append(np.concatenate([resample(np.asarray(curve), "bin_mean", N_GRID), own]))
    return Agreement(
        model, method, len(rows), mean_estimate(each) if each else None, _of_means(np.array(rows))
    )


def _of_means(rows: Values) -> Estimate | None:
    if len(rows) < 2:
        return None

    def correlate(row: Values) -> float | None:
        return rank_correlation(row[:N_GRID], row[N_GRID:])

    value = correlate(rows.mean(0))
    # 300 of the resampled means: a percentile of a rank correlation over 11 places is as coarse.
    found = [c for c in map(correlate, bootstrap_means(rows, 300, SEED)) if c is not None]
    if value is None or not found:
        return None
    low, high = np.percentile(found, [2.5, 97.5])
    return Estimate(value, float(low), float(high))
