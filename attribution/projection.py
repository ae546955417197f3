"""Maps of a data set: many vectors on a plane by UMAP (McInnes, Healy and Melville 2018)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attribution.errors import UserError

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
            f"min_dist={self.min_dist}, seed={self.seed}, version=1)"
        )


def project(
    vectors: NDArray[np.floating],
    layout: Layout,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float32]:
    """Points [n, 2] of vectors [n, H], the same for the same seed. `report` hears of epochs done
    and their number.

    Distances between far groups, and the axes themselves, mean nothing.

    Raises:
        UserError: fewer than MIN_POINTS vectors, or values that are not finite.
    """
    n = len(vectors)
    if n < MIN_POINTS:
        raise UserError(f"A map needs {MIN_POINTS} points and there are {n}: widen the filters.")
    if not np.isfinite(vectors).all():
        raise UserError("Some vectors are not finite: choose float32 or another model.")
    # numba compiles on import and on first use; nobody else should wait for it.
    from umap import UMAP

    mapper = UMAP(
        n_neighbors=min(layout.n_neighbors, n - 1),
        min_dist=layout.min_dist,
        metric=layout.metric,
        random_state=layout.seed,
        n_jobs=1,
        # Spectral initialisation fails on a handful of points and on doubles.
        init="pca" if min(vectors.shape) > 2 else "random",
        tqdm_kwds={"file": _Epochs(report), "bar_format": "{n_fmt}/{total_fmt} ",
                   "disable": False},
    )  # fmt: skip
    return np.asarray(mapper.fit_transform(np.ascontiguousarray(vectors)), dtype=np.float32)


class _Epochs:
    """What tqdm writes, as numbers."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def write(self, text: str) -> None:
        if found := re.search(r"(\d+)/(\d+)", text):
            self._report(int(found[1]), int(found[2]))

    def flush(self) -> None:
        """tqdm asks for it."""
