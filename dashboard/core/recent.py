"""Values made recently, kept for the next caller that asks for the same."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")

_all: weakref.WeakSet[Recent[Any]] = weakref.WeakSet()


class Recent(Generic[V]):
    """The `size` values used last, by keys that say all they depend on. Any thread may ask; values
    are shared, so nobody may change one."""

    def __init__(self, size: int, made_again: bool = True) -> None:
        """`made_again` is False of what holds no text and takes long to make, or cannot be made
        again."""
        self._size = size
        self.made_again = made_again
        self._values: OrderedDict[Hashable, V] = OrderedDict()
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
        """Keep `value` in place of the least recently used one."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value kept under `key`, else what `make` gives (twice where two ask at once)."""
        found = self.find(key)
        return self.keep(key, make()) if found is None else found

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._values.clear()


def forget_made() -> None:
    """Clear every `Recent` of figures, averages and the like, which are made again when asked
    for."""
    for one in list(_all):
        if one.made_again:
            one.clear()
