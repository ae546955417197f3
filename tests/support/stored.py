"""All contents of a store's file, without naming the pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poslens.attribution.types import N_BINS, Array, Method
from poslens.cache.exchange.rows import stored
from poslens.cache.storage.store import ModelKey, Store

_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Everything:
    """A snapshot of results: pair ids [n], curves [n, 100] under the method's parameters and scores
    [n], in the order in which they were stored; and failure reasons of other pairs."""

    pair_ids: tuple[str, ...]
    curves: Array
    scores: Array
    failed: dict[str, str]


def everything(store: Store, model: ModelKey, method: Method) -> Everything:
    """All results of a model and a method."""
    # A single batch, since each batch is a separate snapshot.
    rows = [row for batch in stored(store, model, method, _ALL) for row in batch.to_pylist()]
    done = [row for row in rows if row["reason"] is None]
    return Everything(
        tuple(row["pair_id"] for row in done),
        np.array([row["curve"] for row in done], np.float32).reshape(-1, N_BINS),
        np.array([row["score"] for row in done], np.float32),
        {row["pair_id"]: row["reason"] for row in rows if row["reason"] is not None},
    )
