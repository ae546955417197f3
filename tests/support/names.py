"""Names that are unregistered at the end of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from poslens.attribution.names import Names


@contextmanager
def temporary_names() -> Iterator[None]:
    """Unregister at its end what is registered in this block."""
    before = [dict(names) for names in Names.every]
    try:
        yield
    finally:
        for number, names in enumerate(Names.every):
            earlier = before[number] if number < len(before) else names.initial
            names.clear()
            names.update(earlier)
