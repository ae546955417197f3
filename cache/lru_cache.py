"""In-memory caches of recently computed values."""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

from poslens.attribution.types import Array

V = TypeVar("V")

_all: weakref.WeakSet[LRUCache[Any]] = weakref.WeakSet()


class LRUCache(Generic[V]):
    """A thread-safe cache that evicts the least recently used values once their total weight
    exceeds `limit`. Keys must cover everything a value depends on. Values are shared, so callers
    must not modify them."""

    def __init__(
        self, limit: int, made_again: bool = True, weigh: Callable[[V], int] = lambda value: 1
    ) -> None:
        """`made_again` is False for values that contain no text and are expensive or impossible to
        compute again. `weigh` returns a value's weight; by default each weighs 1."""
        self._limit, self._weigh = limit, weigh
        self.made_again = made_again
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()
        _all.add(self)

    def find(self, key: Hashable) -> V | None:
        """The cached value of `key`; None if there is none."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def keep(self, key: Hashable, value: V) -> V:
        """Cache `value`, evicting the least recently used ones, and return it."""
        with self._lock:
            if key in self._values:
                self._weight -= self._weigh(self._values.pop(key))
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._limit:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])
        return value

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The cached value of `key`, computed by `make` if missing (twice if two threads ask at
        once)."""
        value = self.find(key)
        return self.keep(key, make()) if value is None else value

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()
            self._weight = 0

    @property
    def weight(self) -> int:
        """Total weight of the cached values."""
        return self._weight


SLOW_S = 3.0
WAIT = 10
"""A value that took at least `SLOW_S` seconds to compute is not recomputed until `WAIT` times that
duration has passed."""


class StampedCache(Generic[V]):
    """Values derived from changing data, reused while the data's stamp is the same. A value that
    takes seconds to compute (the mean of 421,000 curves) is reused for a while longer: each new
    result would otherwise trigger a recomputation."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: LRUCache[tuple[V, object, float]] = LRUCache(limit)
        """Each value with its stamp, and the time until which it is reused in any case."""
        self._clock = clock

    def get(self, key: Hashable, stamp: object, make: Callable[[], V]) -> V:
        """The value of `key`; `stamp` identifies the current state of the data it is computed
        from."""
        stamped = self._kept.find(key)
        if stamped is None or (stamped[1] != stamp and self._clock() >= stamped[2]):
            began = self._clock()
            value = make()
            now = self._clock()
            holds_until = now + WAIT * (now - began) if now - began >= SLOW_S else now
            stamped = self._kept.keep(key, (value, stamp, holds_until))
        return stamped[0]


def forget_made() -> None:
    """Clear every `LRUCache` of values that can be computed again: results, figures, averages."""
    for cache in list(_all):
        if cache.made_again:
            cache.clear()


def digest(*arrays: Array) -> bytes:
    """A digest of arrays, for keys."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).data)
    return total.digest()
