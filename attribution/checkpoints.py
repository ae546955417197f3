"""Where long work can end, and how it reports its progress.

Whoever starts the work opens `stoppable` and `reporting` in its thread; the work calls
`checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from poslens.attribution.errors import Stopped

_should_stop: ContextVar[Callable[[], bool]] = ContextVar("should_stop", default=lambda: False)


@contextmanager
def stoppable(should_stop: Callable[[], bool]) -> Iterator[None]:
    """While open, work in this thread ends at the next `checkpoint`, or where it asks
    `stop_requested`, once `should_stop` returns True."""
    outer = _should_stop.get()
    token = _should_stop.set(lambda: should_stop() or outer())
    try:
        yield
    finally:
        _should_stop.reset(token)


def stop_requested() -> bool:
    """Whether the work in this thread should end (`stoppable`)."""
    return _should_stop.get()()


OnShare = Callable[[float, str, bool], None]
"""Called with a finished share, from 0 to 1, of what, and whether that precedes the pair; without a
text, the share is that of the whole pair."""

_on_share: ContextVar[OnShare] = ContextVar("on_share", default=lambda share, doing, before: None)


@contextmanager
def reporting(on_share: OnShare) -> Iterator[None]:
    """While open, `checkpoint` reports shares to `on_share`."""
    token = _on_share.set(on_share)
    try:
        yield
    finally:
        _on_share.reset(token)


def checkpoint(share: float | None = None, doing: str = "", *, before: bool = False) -> None:
    """Where work can end: between batches, and between the passes of one pair. `share` is the
    finished share of the pair, if it is known. What is only one attempt of unknown number, or comes
    `before` the first pair, says what it is `doing`.

    Raises:
        Stopped: the work was stopped (`stoppable`).
    """
    if share is not None:
        _on_share.get()(share, doing, before)
    if stop_requested():
        raise Stopped("Stopped before the result was computed.")
