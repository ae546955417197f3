"""Batches of texts of similar length, halved when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

# What fits next to a small model: a few long documents on a CPU, where larger batches save no time,
# and many on a GPU, where they use all of its cores.
CPU_BATCH_TOKENS = 2048
GPU_BATCH_TOKENS = 65536

# Messages of out-of-memory errors for which torch has no exception class: its CPU allocator,
# CUDA's driver, cuBLAS, and Apple's GPUs.
_OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)


def batch_tokens(device: str) -> int:
    """Maximum number of tokens of a batch on a device of this type."""
    return CPU_BATCH_TOKENS if device == "cpu" else GPU_BATCH_TOKENS


def estimated_tokens(text: str) -> int:
    """Estimated tokens: bytes divided by four, which is close in every script and needs no
    tokenizer."""
    return len(text.encode("utf-8", "replace")) // 4 + 8


def batches(
    items: Sequence[T],
    length: Callable[[T], int],
    max_tokens: int,
    order: Callable[[T], Any] | None = None,
) -> Iterator[list[T]]:
    """Group items so that items × longest stays within `max_tokens`, longest first, or largest
    `order` first if it is given.

    With the longest batch first, an out-of-memory error occurs at the start of a run, not at its
    end.
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


class _TooLarge(UserError):
    """A single item does not fit into memory."""


def out_of_memory(error: BaseException) -> bool:
    """Whether the error means that the device ran out of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError, _TooLarge)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class Halving:
    """Computes batches and halves those that exceed the device's memory. Later batches start with
    as many parts as an earlier batch needed, instead of failing first.

    A batch may itself run a text many times, in batches of copies with a halving of their own. Only
    if a single copy does not fit, the outer batch is halved."""

    def __init__(self) -> None:
        self._parts = 1

    def __call__(
        self, run: Callable[[list[T]], list[R]], batch: list[T], full: int | None = None
    ) -> list[R]:
        """The results of `run(batch)`, split if necessary. `full` is the number of such items in a
        full batch, if this one may have fewer: only a full batch needs all of the parts.

        Raises:
            UserError: a single item does not fit into memory.
        """
        n = full or len(batch)
        size = max(1, -(-n // self._parts))
        results: list[R] = []
        for start in range(0, len(batch), size):
            results += self._run(run, batch[start : start + size], n)
        return results

    def _run(self, run: Callable[[list[T]], list[R]], part: list[T], n: int) -> list[R]:
        """The results of `run(part)`, halved until it fits; a full batch has n items."""
        try:
            return run(part)
        except Exception as error:
            if not out_of_memory(error):
                raise
        # Outside the except block: only here is the memory of the failed attempt's frames free.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(part) == 1:
            raise _TooLarge(
                "One document does not fit into the device's memory: choose shorter documents or a "
                "smaller model, or set POSLENS_DEVICE=cpu."
            )
        middle = len(part) // 2
        results = self._run(run, part[:middle], n) + self._run(run, part[middle:], n)
        self._parts = max(self._parts, -(-n // (len(part) - middle)))
        return results


def run_batches(
    run: Callable[[list[T]], R], batches: Iterable[list[T]]
) -> Iterator[tuple[list[T], R]]:
    """Yield each batch, or each part of a batch that was split, with the result of `run`; a
    `checkpoint` precedes each batch.

    Raises:
        Stopped: the work was stopped.
        UserError: a single item does not fit into memory.
    """
    halving = Halving()
    for batch in batches:
        checkpoint()
        yield from halving(lambda part: [(part, run(part))], batch)
