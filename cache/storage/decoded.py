"""Results that this process decoded before, kept with the bytes they were decoded from.

A page that refreshes itself reads the same results again and again. What is stored is still read
each time, and taken from here only where it is, byte for byte, what was decoded then: whoever
replaces, deletes or damages a result is seen at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Decoded:
    """The least recently read make room once the kept bytes, payloads as they are stored, are more
    than `limit`. Any number of threads; results must be values that nobody changes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[bytes, Any]] = OrderedDict()
        self._size = 0

    def read(self, key: Hashable, payload: bytes, decode: Callable[[bytes], T | None]) -> T | None:
        """What `payload` says, decoded unless that was done before; None, which is not kept, where
        `decode` finds it damaged."""
        with self._lock:
            known = self._kept.get(key)
            if known is not None and known[0] == payload:
                self._kept.move_to_end(key)
                return known[1]
        found = decode(payload)
        if found is not None:
            self._keep(key, payload, found)
        return found

    def _keep(self, key: Hashable, payload: bytes, found: Any) -> None:
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._kept[key] = payload, found
            self._size += len(payload) - (len(replaced[0]) if replaced else 0)
            while self._size > self._limit:
                _, (dropped, _) = self._kept.popitem(last=False)
                self._size -= len(dropped)

    def clear(self) -> None:
        """Keep nothing of what was decoded."""
        with self._lock:
            self._kept.clear()
            self._size = 0

    @property
    def size(self) -> int:
        """Bytes of the payloads that are kept."""
        return self._size
