"""Compute results of any kind item by item, storing each one immediately."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.curves.bootstrap import SEED
from poslens.attribution.errors import RunEnded, UserError
from poslens.attribution.types import Method
from poslens.cache.jobs import loop
from poslens.cache.jobs.claims import claims_folder
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.storage.results import Results
from poslens.cache.storage.store import ModelKey

Item = TypeVar("Item")
T = TypeVar("T")


def compute_missing(
    results: Results[Item, T],
    model: ModelKey,
    method: Method,
    items: Sequence[Item],
    compute: Callable[[Item], T],
    *,
    options: RunOptions = RunOptions(),
    portion: int = 1,
    prepare: Callable[[Sequence[Item]], None] = lambda items: None,
) -> Progress:
    """Compute and store the results that `results` lacks of `items`, one by one. Stops between
    items, or at a checkpoint within one, and can be resumed at any point. A device slot is taken
    for each item.

    Items are claimed in groups of `portion`; `prepare` is called with each group before its first
    item is computed. A UserError raised by `compute` is stored as that item's failure.

    Raises:
        UserError: the store can't be written; results stored before remain.
    """

    def batches(todo: Sequence[Item]) -> Iterator[list[Item]]:
        for first in range(0, len(todo), portion):
            yield list(todo[first : first + portion])

    def result_of(item: Item) -> T | UserError:
        try:
            with options.device_slot():
                return compute(item)
        except RunEnded:
            raise
        except UserError as failure:
            return failure

    def computed(batches: Iterator[list[Item]]) -> Iterator[tuple[Item, T | UserError]]:
        for batch in batches:
            prepare(batch)
            for item in batch:
                checkpoint()
                yield item, result_of(item)

    def store(outcome: tuple[Item, T | UserError]) -> tuple[list[Item], list[Item]]:
        item, result = outcome
        if isinstance(result, UserError):
            results.put_failures(model, method, [(item, str(result))])
            return [], [item]
        results.put(model, method, [(item, result)])
        return [item], []

    work = loop.Work(
        claims_folder(results.root, model, method, results.kind),
        key=lambda item: "\0".join(results.key(item)),
        missing=partial(results.missing, model, method, retry=options.retry_failed),
        batches=batches,
        compute=computed,
        store=store,
    )
    return loop.run(work, items, options=options)


def random_order(n: int) -> list[int]:
    """The numbers of n items in a random order, the same each time: the items that a run in this
    order has computed are a random sample of all at any time."""
    order: list[int] = np.random.default_rng([SEED, n]).permutation(n).tolist()
    return order
