"""Python's search for garbage, while much comes in that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """While a model and its libraries come in, half a million objects that stay: to walk them again
    and again takes a fifth of the time. Nor later, once they are frozen: one walk of them holds
    every page up for half a second."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
