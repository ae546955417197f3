"""Maps of a data set: many vectors on a plane by UMAP (McInnes, Healy and Melville 2018)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.errors import UserError

MIN_POINTS = 5
METRICS = {"embeddings": "cosine", "curves": "correlation"}
"""Embeddings are compared by angle, as retrievers do; curves by shape, whatever their height."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a map is made; its repr goes into captions and keys."""

    metric: str = "cosine"
    n_neighbors: int = 15
    min_dist: float = 0.1
    seed: int = 20260101

    def __repr__(self) -> str:
        return (
            f"umap(metric={self.metric}, n_neighbors={self.n_neighbors}, "
            f"min_dist={self.min_dist}, seed={self.seed}, version=2)"
        )


def shapes(vectors: NDArray[np.floating], metric: str) -> NDArray[np.float32]:
    """Vectors [n, H] at length 1, for `correlation` less their own mean first: what the metric
    compares, and no more. Vectors of zeros, and for `correlation` those whose values are all the
    same, have nothing to compare and stay zeros.

    Raises:
        UserError: values that are not finite.
    """
    array = comparable(vectors, metric)[:, None]
    values = np.asarray(vectors, dtype=np.float64)
    # The largest value first: the square of 1e200 is no number any more.
    largest = np.abs(values).max(1, keepdims=True, initial=0.0)
    values = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
    if metric == "correlation":
        values = values - values.mean(1, keepdims=True)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    shaped: NDArray[np.float64] = np.zeros_like(values)
    np.divide(values, lengths, out=shaped, where=array)
    return shaped.astype(np.float32)


def comparable(vectors: NDArray[np.floating], metric: str) -> NDArray[np.bool_]:
    """Which vectors [n] can be compared under the metric: see `shapes`.

    Raises:
        UserError: values that are not finite.
    """
    if not np.isfinite(vectors).all():
        raise UserError("Some vectors are not finite: choose float32 or another model.")
    high, low = vectors.max(1, initial=-np.inf), vectors.min(1, initial=np.inf)
    largest = np.maximum(np.abs(high), np.abs(low))
    spread = high - low if metric == "correlation" else largest
    # Equal values of a curve differ by rounding.
    varies: NDArray[np.bool_] = spread > 1e-6 * largest
    return varies


def project(
    vectors: NDArray[np.floating],
    layout: Layout,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float32]:
    """Points [n, 2] of vectors [n, H], the same for the same seed. `report` hears of epochs done
    and their number.

    Equal vectors share a point: UMAP alone would spread them out. Fewer than MIN_POINTS different
    ones stand evenly on a circle. Distances between far groups, and the axes themselves, mean
    nothing.

    Raises:
        UserError: fewer than MIN_POINTS vectors, values that are not finite, or a vector that
            cannot be compared (see `comparable`).
    """
    n = len(vectors)
    if n < MIN_POINTS:
        raise UserError(f"A map needs {MIN_POINTS} points and there are {n}: widen the filters.")
    shape = shapes(vectors, layout.metric)
    if not shape.any(1).all():
        raise UserError("Some vectors are zero or flat and lie near no other: leave them out.")
    places: dict[bytes, int] = {}
    first: list[int] = []
    place = []
    # Adding zero makes one zero of both signs.
    for row, values in enumerate(shape + np.float32(0.0)):
        number = places.setdefault(values.tobytes(), len(places))
        if number == len(first):
            first.append(row)
        place.append(number)
    return _points(shape[first], layout, report)[place]


def _points(
    vectors: NDArray[np.float32], layout: Layout, report: Callable[[int, int], None]
) -> NDArray[np.float32]:
    """Points [n, 2] of different vectors [n, H]."""
    n = len(vectors)
    if n < MIN_POINTS:
        angles = 2 * np.pi * np.arange(n) / n
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return (circle * (n > 1)).astype(np.float32)
    # numba compiles on import and on first use; nobody else should wait for it.
    from umap import UMAP

    mapper = UMAP(
        n_neighbors=min(layout.n_neighbors, n - 1),
        min_dist=layout.min_dist,
        metric=layout.metric,
        random_state=layout.seed,
        n_jobs=1,
        # Spectral initialisation fails on a handful of points.
        init="pca" if min(vectors.shape) > 2 else "random",
        tqdm_kwds={"file": _Epochs(report), "bar_format": "{n_fmt}/{total_fmt} ", "disable": False},
    )
    return np.asarray(mapper.fit_transform(np.ascontiguousarray(vectors)), dtype=np.float32)


class _Epochs:
    """What tqdm writes, as numbers."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def write(self, text: str) -> None:
        if match := re.search(r"(\d+)/(\d+)", text):
            self._report(int(match[1]), int(match[2]))

    def flush(self) -> None:
        """tqdm asks for it."""
