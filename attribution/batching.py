"""Batches of texts of like length, halved when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

from attribution.errors import Stopped, UserError

T = TypeVar("T")
R = TypeVar("R")

# What fits beside a small model: a few long documents on a CPU, where larger batches gain
# nothing, and many on a GPU, where they fill it.
CPU_BATCH_TOKENS = 2048
GPU_BATCH_TOKENS = 65536


def batch_tokens(device: str) -> int:
    """How many tokens a batch may have on a device of this type."""
    return CPU_BATCH_TOKENS if device == "cpu" else GPU_BATCH_TOKENS


def estimated_tokens(text: str) -> int:
    """Bytes over four are close to tokens in every script, and cost no tokenizing."""
    return len(text.encode("utf-8", "replace")) // 4 + 8


def batches(items: Sequence[T], length: Callable[[T], int], max_tokens: int) -> Iterator[list[T]]:
    """Group items, longest first, so that items x longest stays within `max_tokens`.

    Longest first brings an out-of-memory error at the start of a run rather than at its end.
    """
    ordered = sorted(items, key=length, reverse=True)
    start = 0
    while start < len(ordered):
        size = max(1, max_tokens // max(1, length(ordered[start])))
        yield ordered[start : start + size]
        start += size


def halving(run: Callable[[list[T]], list[R]], batch: list[T]) -> list[R]:
    """`run(batch)`, in halves where the device has no memory for the whole.

    Raises:
        UserError: a single item does not fit.
    """
    try:
        return run(batch)
    except (torch.OutOfMemoryError, MemoryError) as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) == 1:
            raise UserError(
                "One document does not fit into the device's memory: choose a smaller maximum "
                "length, a smaller model, or start PosLens with --device cpu."
            ) from error
    # Outside the except block, so that the failed attempt's tensors are freed first.
    middle = len(batch) // 2
    return halving(run, batch[:middle]) + halving(run, batch[middle:])


_should_stop: ContextVar[Callable[[], bool]] = ContextVar("should_stop", default=lambda: False)


@contextmanager
def stoppable(should_stop: Callable[[], bool]) -> Iterator[None]:
    """Let `checkpoint` ask `should_stop` while this is open: for one slow pair, which is no batch
    to stop after."""
    token = _should_stop.set(should_stop)
    try:
        yield
    finally:
        _should_stop.reset(token)


def checkpoint() -> None:
    """Called by methods between the passes that one pair takes.

    Raises:
        Stopped: whoever asked for it does not want it any more.
    """
    if _should_stop.get()():
        raise Stopped("Stopped before the result was there.")
