"""The loop of every run over many items: claim, check, compute, store, release.

Only what is missing is computed, and each batch is durable before the next one. Runs of one host on
the same results share the work: what one of them is computing is left to it, and taken over if it
dies. What an item is, where it is computed and where it is stored is the matter of a `Work`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from poslens.attribution.errors import Stopped, Unavailable
from poslens.cache.jobs.claims import Claims

Item = TypeVar("Item")
Computed = TypeVar("Computed")

_WAIT_S = 0.5  # between looks at what another run is computing


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `done` counts what was stored already; `computed` and `seconds` are of
    this run alone, so that rate and estimate are not flattered by the cache."""

    total: int
    done: int
    computed: int
    failed: int
    seconds: float
    stopped: bool = False

    @property
    def rate(self) -> float | None:
        """Items per second of this run."""
        return self.computed / self.seconds if self.computed and self.seconds else None

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate for the rest."""
        rate = self.rate
        return (self.total - self.done) / rate if rate else None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is told from outside, and whom it tells how far it is: it stops between batches
    once `should_stop` says so, enters `device_slot` for each batch (a server passes its device's
    queue), and with `retry_failed` tries once more what failed before."""

    should_stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[Progress], None] = lambda progress: None
    device_slot: Callable[[], AbstractContextManager[object]] = nullcontext
    retry_failed: bool = False


class Work(Protocol[Item, Computed]):
    """What a run is over. `claims` is the folder where runs on the same results say what they are
    computing."""

    claims: Path

    def key(self, item: Item) -> str:
        """What names the item, with all that its result depends on, to other runs."""
        ...

    def missing(self, items: Sequence[Item]) -> list[Item]:
        """Those of `items` that are still to be computed."""
        ...

    def batches(self, items: Sequence[Item]) -> Iterator[list[Item]]:
        """The items in the batches that are claimed together."""
        ...

    def compute(self, batches: Iterator[list[Item]]) -> Iterator[Computed]:
        """What the batches give, in portions to be stored at once and in any order. A batch is
        taken only when it can be computed, so that it is claimed no earlier.

        Raises:
            Stopped: it was stopped within a batch.
        """
        ...

    def store(self, computed: Computed) -> tuple[list[Item], list[Item]]:
        """Keep one portion, all or nothing and durable when this returns; give the items that have
        a result now, and those that failed.

        Raises:
            UserError: it cannot be written.
        """
        ...


def run(
    work: Work[Item, Computed], items: Sequence[Item], *, options: RunOptions = RunOptions()
) -> Progress:
    """Compute and store what is missing of `items`. Stops between batches, resumes anywhere; an
    item that fails is not tried again by this run. Turns and failures of earlier runs are the
    matter of `work`.

    Raises:
        UserError: the store cannot be written, or what computes is not there any more; what was
            stored before stays.
    """
    loop = _Loop(work, len(items), options)
    todo = loop.missing(items)
    loop.count_stored(len(items) - len(todo))
    if todo:
        with Claims(work.claims) as claims:
            # Listed again: from here on, others that finish in between are noticed.
            listed = loop.missing(todo)
            if len(listed) < len(todo):
                loop.count_stored(len(todo) - len(listed))
            loop.run(listed, claims)
    return loop.progress()


class _Loop(Generic[Item, Computed]):
    """One run's bookkeeping."""

    def __init__(self, work: Work[Item, Computed], total: int, options: RunOptions) -> None:
        self._work, self._total, self._options = work, total, options
        self._elsewhere = self._computed = self._failed = 0
        self._tried: set[str] = set()
        self._stopped = False
        self._started = time.perf_counter()

    def progress(self) -> Progress:
        """As of now."""
        return Progress(
            total=self._total,
            done=self._elsewhere + self._computed,
            computed=self._computed,
            failed=self._failed,
            seconds=time.perf_counter() - self._started,
            stopped=self._stopped,
        )

    def missing(self, items: Sequence[Item]) -> list[Item]:
        """What of `items` this run still has to see done."""
        missing = self._work.missing(items)
        return [item for item in missing if self._work.key(item) not in self._tried]

    def count_stored(self, n: int) -> None:
        """So many were computed by others, before or meanwhile."""
        self._elsewhere += n
        self._options.on_progress(self.progress())

    def run(self, todo: list[Item], claims: Claims) -> None:
        """Compute `todo`, leaving to other runs what they claim."""
        while todo and not self._stopped:
            left: list[Item] = []
            stored: set[str] = set()
            before = self._computed
            try:
                for computed in self._work.compute(self._claimed(todo, claims, left, stored)):
                    # At once: a resumed run then cuts the rest into the very batches of an
                    # uninterrupted one, and its numbers are the same bit for bit.
                    done, failed = self._work.store(computed)
                    failed_keys = {self._work.key(item) for item in failed}
                    self._tried |= failed_keys
                    stored |= {self._work.key(item) for item in done} | failed_keys
                    self._computed += len(done) + len(failed)
                    self._failed += len(failed)
                    self._options.on_progress(self.progress())
            except Unavailable:
                raise
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
        """Batches without what other runs have or had; what they are computing goes to `left`.
        Claims on what is `stored` by now are released."""
        key = self._work.key
        for batch in self._work.batches(todo):
            if self._options.should_stop():
                self._stopped = True
                return
            if stored:
                claims.release(stored)
                stored.clear()
            mine = claims.take([key(item) for item in batch])
            left += [item for item in batch if key(item) not in mine]
            batch = [item for item in batch if key(item) in mine]
            if batch and claims.contended:
                claimed = batch
                batch = self.missing(claimed)
                if len(batch) < len(claimed):
                    claims.release(mine - {key(item) for item in batch})
                    self.count_stored(len(claimed) - len(batch))
            if batch:
                yield batch
