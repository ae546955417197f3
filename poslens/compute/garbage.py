"""Pauses garbage collection while many permanent objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """Disable garbage collection while a model and its libraries load. They create half a
    million permanent objects, and traversing these repeatedly takes a fifth of the loading time.
    Afterwards they are frozen, because one traversal would block every page for half a second."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
