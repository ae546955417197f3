"""What damaged or forged bytes cause in code that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from poslens.attribution.errors import UserError

DAMAGE: tuple[type[Exception], ...] = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""Exceptions that such bytes can cause in a library, or in code that takes values from them."""


@contextmanager
def translate_damage(sentence: str) -> Iterator[None]:
    """Turn any of these exceptions into a `UserError` with this sentence."""
    try:
        yield
    except DAMAGE as error:
        raise UserError(sentence) from error
