"""The loop shared by all runs over many items: claim, check, compute, store, release.

Only missing items are computed, and each batch is durable before the next one starts. Runs of one
host on the same results share the work: items claimed by another run are left to it, and taken over
if it dies. A `Work` defines what an item is, and where it is computed and stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from poslens.attribution.checkpoints import stop_requested
from poslens.attribution.errors import Stopped
from poslens.cache.jobs.claims import Claims

Item = TypeVar("Item")
Computed = TypeVar("Computed")

_WAIT_S = 0.5  # between checks of items that another run is computing


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run. `done` includes items that were already stored; `computed` and `seconds`
    count this run alone, so that cached items don't inflate the rate or the estimate."""

    total: int
    done: int
    computed: int
    failed: int
    seconds: float
    stopped: bool = False

    @property
    def rate(self) -> float | None:
        """Items per second of this run; None if unknown."""
        return self.computed / self.seconds if self.computed and self.seconds else None

    @property
    def remaining_seconds(self) -> float | None:
        """Estimated seconds until the run ends; None if unknown."""
        rate = self.rate
        return (self.total - self.done) / rate if rate else None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run: it enters `device_slot` for each batch (a server passes its device queue),
    and with `retry_failed` retries earlier failures. `on_stage` is called with the name of each
    stage that begins."""

    on_progress: Callable[[Progress], None] = lambda progress: None
    device_slot: Callable[[], AbstractContextManager[object]] = nullcontext
    retry_failed: bool = False
    on_stage: Callable[[str], None] = lambda stage: None


@dataclass(frozen=True, slots=True)
class Work(Generic[Item, Computed]):
    """What a run computes and stores. Runs on the same results record their claims in the folder
    `claims`.

    `key` identifies an item, including everything its result depends on, to other runs. `missing`
    returns those items that still have to be computed, and `batches` splits items into the batches
    that are claimed together. `compute` yields computed portions in any order, and takes a batch
    only when it can be computed, so that it is not claimed too early; it raises `Stopped` if the
    run was cancelled within a batch. `store` stores one portion in one transaction, durable when it
    returns, and returns the items that now have a result, and those that failed; it raises a
    `UserError` if the portion can't be written.
    """

    claims: Path
    key: Callable[[Item], str]
    missing: Callable[[Sequence[Item]], list[Item]]
    batches: Callable[[Sequence[Item]], Iterator[list[Item]]]
    compute: Callable[[Iterator[list[Item]]], Iterator[Computed]]
    store: Callable[[Computed], tuple[list[Item], list[Item]]]


def run(
    work: Work[Item, Computed], items: Sequence[Item], *, options: RunOptions = RunOptions()
) -> Progress:
    """Compute and store the missing results of `items`. Stops between batches and can be resumed at
    any point. An item that fails is not retried by this run. `work` handles device slots and
    failures of earlier runs.

    Raises:
        UserError: the store can't be written, or the executor is no longer available; results
            stored before remain.
    """
    loop = _Loop(work, len(items), options)
    todo = loop.missing(items)
    loop.count_stored(len(items) - len(todo))
    if todo:
        with Claims(work.claims) as claims:
            # Listed again, because another run may have stored items before `claims` was opened;
            # from here on, `claims` detects other runs.
            listed = loop.missing(todo)
            if len(listed) < len(todo):
                loop.count_stored(len(todo) - len(listed))
            loop.run(listed, claims)
    return loop.progress()


class _Loop(Generic[Item, Computed]):
    """The state of one run."""

    def __init__(self, work: Work[Item, Computed], total: int, options: RunOptions) -> None:
        self._work, self._total, self._options = work, total, options
        self._elsewhere = self._computed = self._failed = 0
        self._tried: set[str] = set()
        self._stopped = False
        self._started = time.perf_counter()

    def progress(self) -> Progress:
        return Progress(
            total=self._total,
            done=self._elsewhere + self._computed,
            computed=self._computed,
            failed=self._failed,
            seconds=time.perf_counter() - self._started,
            stopped=self._stopped,
        )

    def missing(self, items: Sequence[Item]) -> list[Item]:
        """Those of `items` that this run still has to compute or wait for."""
        missing = self._work.missing(items)
        return [item for item in missing if self._work.key(item) not in self._tried]

    def count_stored(self, n: int) -> None:
        """Count `n` items that other runs have stored, before or during this run."""
        self._elsewhere += n
        self._options.on_progress(self.progress())

    def run(self, todo: list[Item], claims: Claims) -> None:
        """Compute `todo`, except items that other runs have claimed."""
        while todo and not self._stopped:
            left: list[Item] = []
            stored: set[str] = set()
            before = self._computed
            try:
                for computed in self._work.compute(self._claimed(todo, claims, left, stored)):
                    # Stored at once: a resumed run then splits the rest into the same batches as an
                    # uninterrupted one, so its numbers are identical bit for bit.
                    done, failed = self._work.store(computed)
                    failed_keys = {self._work.key(item) for item in failed}
                    self._tried |= failed_keys
                    stored |= {self._work.key(item) for item in done} | failed_keys
                    self._computed += len(done) + len(failed)
                    self._failed += len(failed)
                    self._options.on_progress(self.progress())
            except Stopped:
                self._stopped = True
            claims.release(stored)
            todo = self.missing(left)
            if len(todo) < len(left):
                self.count_stored(len(left) - len(todo))
            if todo and self._computed == before and not self._stopped:
                time.sleep(_WAIT_S)

    def _claimed(
        self, todo: Sequence[Item], claims: Claims, left: list[Item], stored: set[str]
    ) -> Iterator[list[Item]]:
        """Yield batches without items that other runs have claimed or stored; claimed ones are
        appended to `left`. Claims on items that are `stored` by now are released."""
        key = self._work.key
        for batch in self._work.batches(todo):
            if stop_requested():
                self._stopped = True
                return
            if stored:
                claims.release(stored)
                stored.clear()
            taken = claims.take([key(item) for item in batch])
            left += [item for item in batch if key(item) not in taken]
            batch = [item for item in batch if key(item) in taken]
            if batch and claims.contended:
                claimed = batch
                batch = self.missing(claimed)
                if len(batch) < len(claimed):
                    claims.release(taken - {key(item) for item in batch})
                    self.count_stored(len(claimed) - len(batch))
            if batch:
                yield batch
