"""The loop: each item is computed and counted once, whatever fails, stops or is done elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped
from poslens.cache.jobs import loop
from poslens.cache.jobs.claims import Claims, at_work
from poslens.cache.jobs.loop import Progress, RunOptions


class Numbers:
    """Work on numbers in batches of three; those in `failing` fail, and a run stops within batch
    `dies`."""

    def __init__(self, claims: Path, failing: set[int], dies: int | None = None) -> None:
        self.claims, self._failing, self._dies = claims, failing, dies
        self.stored: set[int] = set()
        self.failed: set[int] = set()
        self.batched: list[list[int]] = []
        self.retry = False

    def key(self, item: int) -> str:
        return str(item)

    def missing(self, items: Sequence[int]) -> list[int]:
        known = self.stored if self.retry else self.stored | self.failed
        return [item for item in items if item not in known]

    def batches(self, items: Sequence[int]) -> Iterator[list[int]]:
        yield from (list(items[i : i + 3]) for i in range(0, len(items), 3))

    def compute(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        for batch in batches:
            if len(self.batched) == self._dies:
                raise Stopped("Stopped within a batch.")
            self.batched.append(batch)
            yield batch

    def store(self, computed: list[int]) -> tuple[list[int], list[int]]:
        failed = [item for item in computed if item in self._failing]
        done = [item for item in computed if item not in self._failing]
        self.stored.update(done)
        self.failed.update(failed)
        return done, failed


@pytest.mark.parametrize("seed", range(20))
def test_every_item_is_counted_once_whether_stored_computed_or_failed(
    tmp_path: Path, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    items = list(range(17))
    work = Numbers(tmp_path, set(generator.choice(17, 4, replace=False).tolist()))
    work.stored = set(generator.choice(17, 5, replace=False).tolist()) - work._failing
    before = set(work.stored)
    work.retry = bool(seed % 2)
    steps: list[Progress] = []
    last = loop.run(work, items, options=RunOptions(on_progress=steps.append))
    todo = [item for item in items if item not in before]
    assert work.batched == [todo[i : i + 3] for i in range(0, len(todo), 3)]
    assert work.stored == set(items) - work._failing and work.failed == work._failing
    assert (last.total, last.done, last.computed) == (17, 17, len(todo))
    assert last.failed == 4 and not last.stopped and at_work(tmp_path) == 0
    assert [step.done for step in steps] == sorted({step.done for step in steps})
    assert all(a.seconds <= b.seconds for a, b in pairwise(steps))
    again = loop.run(work, items)
    assert again.computed == again.failed == (4 if work.retry else 0) and again.done == 17


@pytest.mark.parametrize("batches", range(7))
def test_a_resumed_run_has_the_same_batches_as_an_uninterrupted_one(
    tmp_path: Path, batches: int
) -> None:
    items = list(range(17))
    asked = iter(range(100))
    between, within = Numbers(tmp_path, {4}), Numbers(tmp_path, {4}, dies=batches)
    with stoppable(lambda: next(asked) >= batches):
        first = loop.run(between, items)
    assert loop.run(within, items).done == first.done == min(3 * batches, 17)
    assert first.stopped == (batches < 6)
    for work in (between, within):
        work._dies = None
        rest = loop.run(work, items)
        assert (rest.done, rest.stopped) == (17, False)
        assert work.batched == [items[i : i + 3] for i in range(0, 17, 3)]


def test_items_stored_by_another_run_are_neither_computed_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = list(range(9))
    work = Numbers(tmp_path, set())
    waits: list[float] = []
    with Claims(tmp_path) as other:
        assert other.take(["0", "1", "5"]) == {"0", "1", "5"}
        work.stored.add(7)  # stored by the other run and no longer claimed

        def wait(seconds: float) -> None:
            waits.append(seconds)
            work.stored.update({0, 1})
            other.release(["0", "1", "5"])  # 5 was not computed

        monkeypatch.setattr(loop.time, "sleep", wait)
        last = loop.run(work, items)
    assert sorted(item for batch in work.batched for item in batch) == [2, 3, 4, 5, 6, 8]
    assert (last.done, last.computed, last.stopped) == (9, 6, False) and len(waits) == 1


def test_claims_are_held_until_a_batch_is_stored(tmp_path: Path) -> None:
    """A run that claims an item and then checks the store never computes what another has
    stored."""

    class Watched(Numbers):
        def store(self, computed: list[int]) -> tuple[list[int], list[int]]:
            with Claims(tmp_path) as other:
                assert other.take([str(item) for item in computed]) == set()
            return super().store(computed)

    assert loop.run(Watched(tmp_path, set()), list(range(8))).computed == 8
