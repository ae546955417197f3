"""Compute results of any kind item by item, storing each one immediately."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.types import Method
from poslens.cache.jobs import loop
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
    items (or within one whose `compute` raises Stopped) and can be resumed at any point. A device
    slot is taken for each item.

    Items are claimed in groups of `portion`; `prepare` is called with each group before its first
    item is computed. A UserError raised by `compute` is stored as that item's failure.

    Raises:
        UserError: the store can't be written; results stored before remain.
    """
    work = _Items(results, model, method, compute, options, portion, prepare)
    return loop.run(work, items, options=options)


class _Items(Generic[Item, T]):
    """Single items: the loop gets an item with its result, or with the reason why it failed."""

    def __init__(
        self,
        results: Results[Item, T],
        model: ModelKey,
        method: Method,
        compute: Callable[[Item], T],
        options: RunOptions,
        portion: int,
        prepare: Callable[[Sequence[Item]], None],
    ) -> None:
        self.claims = claims_folder(results, model, method)
        self._results, self._model, self._method = results, model, method
        self._compute, self._options = compute, options
        self._portion, self._prepare = portion, prepare

    def key(self, item: Item) -> str:
        return "\0".join(self._results.key(item))

    def missing(self, items: Sequence[Item]) -> list[Item]:
        retry = self._options.retry_failed
        return self._results.missing(self._model, self._method, items, retry=retry)

    def batches(self, items: Sequence[Item]) -> Iterator[list[Item]]:
        for first in range(0, len(items), self._portion):
            yield list(items[first : first + self._portion])

    def compute(self, batches: Iterator[list[Item]]) -> Iterator[tuple[Item, T | UserError]]:
        for batch in batches:
            self._prepare(batch)
            for number, item in enumerate(batch):
                if number and self._options.should_stop():  # the loop has checked before the first
                    raise Stopped("Stopped between two items.")
                yield item, self._result(item)

    def _result(self, item: Item) -> T | UserError:
        try:
            with self._options.device_slot():
                return self._compute(item)
        except Stopped:
            raise
        except UserError as failure:
            return failure

    def store(self, computed: tuple[Item, T | UserError]) -> tuple[list[Item], list[Item]]:
        item, result = computed
        if isinstance(result, UserError):
            self._results.put_failures(self._model, self._method, [(item, str(result))])
            return [], [item]
        self._results.put(self._model, self._method, [(item, result)])
        return [item], []


def claims_folder(results: Results[Item, T], model: ModelKey, method: Method) -> Path:
    """The folder in which runs on these results record their claims, separate from attribution runs
    by the same method, which pages count."""
    name = hashlib.sha256(f"{results.kind}\0{method.core}".encode()).hexdigest()[:16]
    return results.root / "claims" / f"{model.fingerprint}-{name}"
