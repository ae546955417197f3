"""Exceptions raised while damaged or forged bytes are read."""

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
"""Exceptions that damaged bytes can cause in a library, or in code that uses values from them."""


@contextmanager
def translate_damage(sentence: str) -> Iterator[None]:
    """Turn any exception of `DAMAGE` into a `UserError` with this sentence."""
    try:
        yield
    except DAMAGE as error:
        raise UserError(sentence) from error
