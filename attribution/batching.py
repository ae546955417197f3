"""Batches of texts of like length, halved when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from poslens.attribution.errors import Stopped, UserError

T = TypeVar("T")
R = TypeVar("R")

# What fits beside a small model: a few long documents on a CPU, where larger batches gain
# nothing, and many on a GPU, where they fill it.
CPU_BATCH_TOKENS = 2048
GPU_BATCH_TOKENS = 65536

# How torch says that memory ran out where it has no class of error for it: its CPU allocator,
# cuBLAS, and Apple's GPUs.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)


def batch_tokens(device: str) -> int:
    """How many tokens a batch may have on a device of this type."""
    return CPU_BATCH_TOKENS if device == "cpu" else GPU_BATCH_TOKENS


def estimated_tokens(text: str) -> int:
    """Bytes over four are close to tokens in every script, and cost no tokenizing."""
    return len(text.encode("utf-8", "replace")) // 4 + 8


def batches(
    items: Sequence[T],
    length: Callable[[T], int],
    max_tokens: int,
    order: Callable[[T], Any] | None = None,
) -> Iterator[list[T]]:
    """Group items, longest first, so that items x longest stays within `max_tokens`; by `order`
    where it is given, largest first.

    Longest first brings an out-of-memory error at the start of a run rather than at its end.
    """
    batch: list[T] = []
    longest = 0
    for item in sorted(items, key=order or length, reverse=True):
        longest = max(longest, length(item))
        if batch and (len(batch) + 1) * longest > max_tokens:
            yield batch
            batch, longest = [], length(item)
        batch.append(item)
    if batch:
        yield batch


def out_of_memory(error: BaseException) -> bool:
    """Whether a computation ended because its device has too little memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class Halving:
    """Computes a run's batches, in halves where the device has no memory for the whole. What one
    batch took is remembered: the next ones begin in as many parts, instead of failing first."""

    def __init__(self) -> None:
        self._parts = 1

    def __call__(self, run: Callable[[list[T]], list[R]], batch: list[T]) -> list[R]:
        """`run(batch)`.

        Raises:
            UserError: a single item does not fit.
        """
        size = max(1, -(-len(batch) // self._parts))
        found: list[R] = []
        for start in range(0, len(batch), size):
            found += self._run(run, batch[start : start + size], len(batch))
        return found

    def _run(self, run: Callable[[list[T]], list[R]], part: list[T], n: int) -> list[R]:
        """`run(part)` of a batch of n."""
        try:
            return run(part)
        except Exception as error:
            if not out_of_memory(error):
                raise
        # Outside the except block: what the failed attempt's frames hold is free only from here on.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(part) == 1:
            raise UserError(
                "One document does not fit into the device's memory: choose a smaller maximum "
                "length, a smaller model, or set POSLENS_DEVICE=cpu."
            )
        middle = len(part) // 2
        found = self._run(run, part[:middle], n) + self._run(run, part[middle:], n)
        self._parts = max(self._parts, -(-n // (len(part) - middle)))
        return found


def run_batches(
    run: Callable[[list[T]], R],
    batches: Iterable[list[T]],
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[list[T], R]]:
    """Each batch with what `run` makes of it, or each part of one that does not fit into memory
    whole; asks `should_stop` before each batch.

    Raises:
        Stopped: it said so.
        UserError: a single item does not fit.
    """
    halving = Halving()
    for batch in batches:
        if should_stop():
            raise Stopped("Stopped before all was computed; start again to go on.")
        yield from halving(lambda part: [(part, run(part))], batch)


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


_on_share: ContextVar[Callable[[float], None]] = ContextVar("on_share", default=lambda share: None)


@contextmanager
def reporting(on_share: Callable[[float], None]) -> Iterator[None]:
    """Let `checkpoint` report how much of one slow pair is done, from 0 to 1, while this is
    open."""
    token = _on_share.set(on_share)
    try:
        yield
    finally:
        _on_share.reset(token)


def checkpoint(share: float | None = None) -> None:
    """Called by methods between the passes that one pair takes; `share` is how much of the pair is
    done, where that is known.

    Raises:
        Stopped: whoever asked for it does not want it any more.
    """
    if share is not None:
        _on_share.get()(share)
    if _should_stop.get()():
        raise Stopped("Stopped before the result was there.")
