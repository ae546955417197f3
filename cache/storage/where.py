"""Which stored results are meant, by what blocks say of them: without their texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attribution.curves.positions import LENGTH_BUCKETS, length_bucket
from cache.storage.blocks import Serials
from cache.storage.index import Index


@dataclass(frozen=True, slots=True)
class Where:
    """Which stored results are meant; empty fields admit all.

    `buckets` are PosIR's of the data set's own token counts; `positions` is the range, ends
    included, of the evidence's mid-point over the document's length in characters.
    """

    datasets: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    positions: tuple[float, float] | None = None


def passing(index: Index, serials: Serials, where: Where) -> NDArray[np.bool_]:
    """Which of `serials` `where` admits [n]."""
    admitted = np.ones(len(serials), np.bool_)
    for name, values in (
        ("dataset", where.datasets),
        ("language", where.languages),
        ("domain", where.domains),
    ):
        if values:
            admitted &= index.one_of(name, values, serials)
    if where.buckets:
        lengths = index.column("document_tokens", serials)
        buckets = _buckets(lengths)
        admitted &= np.isin(buckets, [LENGTH_BUCKETS.index(name) for name in where.buckets])
    if where.positions is not None:
        start, end = index.column("start", serials), index.column("end", serials)
        length = np.maximum(index.column("characters", serials), 1)
        position = (start.astype(np.float64) + end) / 2 / length
        low, high = where.positions
        admitted &= (start >= 0) & (low <= position) & (position <= high)
    return admitted


def _buckets(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """The place in LENGTH_BUCKETS of each count [n]; -1 where the data set gives none."""
    distinct, places = np.unique(lengths, return_inverse=True)
    found = [LENGTH_BUCKETS.index(length_bucket(int(n))) if n > 0 else -1 for n in distinct]
    return np.array(found, dtype=np.int32)[places] if len(distinct) else np.zeros(0, np.int32)
