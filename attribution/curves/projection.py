"""Maps of a data set: vectors projected to a plane by UMAP (McInnes, Healy and Melville 2018)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.errors import UserError
from poslens.attribution.pairs import numbered
from poslens.attribution.types import Method

MIN_POINTS = 5
METRICS = {"embeddings": "cosine", "curves": "correlation"}
"""Embeddings are compared by angle, whatever the model's similarity; curves by shape, regardless of
scale."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings of a map; the repr is used in captions and keys."""

    metric: str = "cosine"
    n_neighbors: int = 15
    min_dist: float = 0.1
    seed: int = 20260101

    def __repr__(self) -> str:
        return repr(Method("umap", {**asdict(self), "version": 2}))


def shapes(vectors: NDArray[np.floating], metric: str) -> NDArray[np.float32]:
    """Vectors [n, H] scaled to length 1, for `correlation` after subtracting their mean: exactly
    what the metric compares. Zero vectors and, for `correlation`, constant ones stay zero.

    Raises:
        UserError: values that are not finite.
    """
    nonzero = comparable(vectors, metric)[:, None]
    values = np.asarray(vectors, dtype=np.float64)
    # Divide by the largest value first: the square of 1e200 overflows.
    largest = np.abs(values).max(1, keepdims=True, initial=0.0)
    values = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
    if metric == "correlation":
        values = values - values.mean(1, keepdims=True)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    shaped: NDArray[np.float64] = np.zeros_like(values)
    np.divide(values, lengths, out=shaped, where=nonzero)
    return shaped.astype(np.float32)


def comparable(vectors: NDArray[np.floating], metric: str) -> NDArray[np.bool_]:
    """Which vectors [n] can be compared under the metric: those that `shapes` does not make zero.

    Raises:
        UserError: values that are not finite.
    """
    if not np.isfinite(vectors).all():
        raise UserError("Some vectors are not finite: choose float32 or another model.")
    high, low = vectors.max(1, initial=-np.inf), vectors.min(1, initial=np.inf)
    largest = np.maximum(np.abs(high), np.abs(low))
    spread = high - low if metric == "correlation" else largest
    # Equal values of a curve can differ by rounding.
    varies: NDArray[np.bool_] = spread > 1e-6 * largest
    return varies


def project(
    vectors: NDArray[np.floating],
    layout: Layout,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float32]:
    """Points [n, 2] of vectors [n, H], identical for the same seed. `report` is called with the
    number of finished epochs and their total.

    Equal vectors share a point; UMAP alone would separate them. Fewer than MIN_POINTS different
    vectors are placed evenly on a circle. The axes have no meaning, nor do distances between
    well-separated groups.

    Raises:
        UserError: fewer than MIN_POINTS vectors, values that are not finite, or a vector that
            cannot be compared (see `comparable`).
    """
    require_points(len(vectors))
    shape = shapes(vectors, layout.metric)
    if not shape.any(1).all():
        raise UserError("Some vectors are zero or constant and have no neighbors: remove them.")
    # Adding zero turns -0.0 into 0.0.
    place = numbered([values.tobytes() for values in shape + np.float32(0.0)])
    first = np.unique(place, return_index=True)[1]
    return _points(shape[first], layout, report)[place]


def require_points(n: int) -> None:
    """Refuse a map of too few points.

    Raises:
        UserError: `n` is less than MIN_POINTS.
    """
    if n < MIN_POINTS:
        raise UserError(f"A map needs at least {MIN_POINTS} points, not {n}: change the filters.")


def _points(
    vectors: NDArray[np.float32], layout: Layout, report: Callable[[int, int], None]
) -> NDArray[np.float32]:
    """Points [n, 2] of different vectors [n, H]."""
    n = len(vectors)
    if n < MIN_POINTS:
        angles = 2 * np.pi * np.arange(n) / n
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return (circle * (n > 1)).astype(np.float32)
    mapper = _umap()(
        n_neighbors=min(layout.n_neighbors, n - 1),
        min_dist=layout.min_dist,
        metric=layout.metric,
        random_state=layout.seed,
        n_jobs=1,
        # Spectral initialization fails for very few points.
        init="pca" if min(vectors.shape) > 2 else "random",
        tqdm_kwds={"file": _Epochs(report), "bar_format": "{n_fmt}/{total_fmt} ", "disable": False},
    )
    return np.asarray(mapper.fit_transform(np.ascontiguousarray(vectors)), dtype=np.float32)


_importing = Lock()


def _umap() -> Any:
    """The class `umap.UMAP`, imported here because its import takes seconds.

    Its functions take ten seconds to compile, so numba stores them next to umap's modules and loads
    them in later processes. pynndescent asks for this itself, umap does not."""
    numba: Any = import_module("numba")  # its types don't let functions be replaced
    with _importing:
        decorators = numba.jit, numba.njit
        numba.jit, numba.njit = (partial(decorator, cache=True) for decorator in decorators)
        try:
            from umap import UMAP
        finally:
            numba.jit, numba.njit = decorators
    return UMAP


class _Epochs:
    """Parses tqdm's output into numbers."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def write(self, text: str) -> None:
        if match := re.search(r"(\d+)/(\d+)", text):
            self._report(int(match[1]), int(match[2]))

    def flush(self) -> None:
        """Required by tqdm."""
