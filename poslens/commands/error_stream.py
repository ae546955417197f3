"""The stream for errors of commands: stderr, even with --quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

_errors: ContextVar[TextIO | None] = ContextVar("_errors", default=None)


@contextmanager
def errors_to(stream: TextIO) -> Iterator[None]:
    """Write errors to this stream, even if stderr is redirected meanwhile."""
    before = _errors.set(stream)
    try:
        yield
    finally:
        _errors.reset(before)


def is_quiet() -> bool:
    """Whether the running command was given --quiet."""
    return _errors.get() is not None


def print_error(sentence: object) -> None:
    """Print an error on stderr, even with --quiet."""
    print(sentence, file=_errors.get() or sys.stderr)
