"""Values made recently, kept for the next caller that asks for the same."""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

V = TypeVar("V")

_all: weakref.WeakSet[LRUCache[Any]] = weakref.WeakSet()


class LRUCache(Generic[V]):
    """The values used last, by keys that say all they depend on, as long as they weigh `limit`
    together at most. Any thread may ask; values are shared, so nobody may change one."""

    def __init__(
        self, limit: int, made_again: bool = True, weigh: Callable[[V], int] = lambda value: 1
    ) -> None:
        """`made_again` is False of what holds no text and takes long to make, or cannot be made
        again. Without `weigh` each value weighs 1."""
        self._limit, self._weigh = limit, weigh
        self.made_again = made_again
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()
        _all.add(self)

    def find(self, key: Hashable) -> V | None:
        """The value kept under `key`."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def keep(self, key: Hashable, value: V) -> V:
        """Keep `value`, in the place of those used least lately."""
        with self._lock:
            if key in self._values:
                self._weight -= self._weigh(self._values.pop(key))
            self._values[key] = value
            self._weight += self._weigh(value)
            while self._weight > self._limit:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])
        return value

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value kept under `key`, else what `make` gives (twice where two ask at once)."""
        found = self.find(key)
        return self.keep(key, make()) if found is None else found

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._values.clear()
            self._weight = 0

    @property
    def weight(self) -> int:
        """What the kept values weigh together."""
        return self._weight


SLOW_S = 3.0
WAIT = 10
"""What took `SLOW_S` or more to make is made anew no sooner than after `WAIT` times that."""


@dataclass(frozen=True, slots=True)
class _Made(Generic[V]):
    value: V
    stamp: object
    holds_until: float


class StampedCache(Generic[V]):
    """Values made of what changes, kept while its stamp is the same. What takes seconds to make
    (the mean of 421,000 curves) is given a while longer: each new result would ask for it again."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: LRUCache[_Made[V]] = LRUCache(limit)
        self._clock = clock

    def get(self, key: Hashable, stamp: object, make: Callable[[], V]) -> V:
        """The value of `key`; `stamp` is what it would be made of now."""
        known = self._kept.find(key)
        if known is None or (known.stamp != stamp and self._clock() >= known.holds_until):
            began = self._clock()
            value = make()
            now = self._clock()
            took = now - began
            known = self._kept.keep(
                key, _Made(value, stamp, now + WAIT * took if took >= SLOW_S else now)
            )
        return known.value


def forget_made() -> None:
    """Clear every `LRUCache` of values that can be made again: results, figures, averages."""
    for cache in list(_all):
        if cache.made_again:
            cache.clear()
