"""Estimates what a run would send to an endpoint, before it starts. No Streamlit here."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from poslens.attribution.batching import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.endpoint_cost import Cost, Counter, counting
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.jobs.loop import Progress
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage import index
from poslens.cache.storage.files import set_fallback
from poslens.cache.storage.store import ModelKey
from poslens.compute.runs import Job, Run

MOST_S = 2.0
"""Maximum seconds of counting; the remaining items are extrapolated from those counted."""


class Counting:
    """Replaces the retrievers of a `Compute` with ones that count the texts they would send."""

    def __init__(self) -> None:
        self.counters: list[Counter] = []

    def retriever(self, spec: RetrieverSpec) -> Retriever:
        """A retriever that counts the texts for an endpoint.

        Raises:
            UserError: this model is not an endpoint, so counting would require computing its part.
        """
        if not spec.remote:
            raise UserError(
                f"The cost depends on {spec.name}, whose part hasn't been computed yet."
            )
        retriever, counter = counting(spec)
        self.counters.append(counter)
        return retriever


class _Fallback:
    """The results already stored, so that only the missing ones are counted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, model: ModelKey, method: Method) -> Path:
        """The only cache folder."""
        return self._root

    def refuse(self, model: ModelKey, method: Method, reason: UserError) -> None:
        """A cache that cannot be read counts as empty."""


_costs: LRUCache[Cost | None] = LRUCache(128, made_again=False)


def cost_of(
    root: Path, job: Job, retry_failed: bool, again: Callable[[Path, Counting], Job]
) -> Cost | None:
    """The texts that `job` still has to send, including those of failed items with `retry_failed`;
    None if that cannot be determined yet. `root` is the folder of its results, and `again` creates
    the same job for another folder, with retrievers that count."""
    n_failed = len(job.failures()) if retry_failed else 0
    left = job.total - job.n_done() + n_failed
    key = (root, job.key, left, n_failed)
    return _costs.get(key, lambda: _counted(root, left, n_failed > 0, again)) if left else None


def _counted(
    root: Path, left: int, retry_failed: bool, again: Callable[[Path, Counting], Job]
) -> Cost | None:
    counting, end = Counting(), time.monotonic() + MOST_S
    folder = Path(tempfile.mkdtemp(prefix="poslens-cost-"))
    set_fallback(folder / "cache", _Fallback(root))
    run = Run("", 0, retry_failed)
    try:
        job = again(folder, counting)
        done = 0

        def report(progress: Progress) -> None:
            nonlocal done
            done = progress.computed
            if time.monotonic() > end:
                run.stop()

        with stoppable(lambda: time.monotonic() > end):
            try:
                progress = job.work(run, report)
                done = progress.computed
                stopped = progress.stopped
            except Stopped:
                stopped = True
    except UserError:  # the run itself reports why it cannot be computed
        return None
    finally:
        set_fallback(folder / "cache", None)
        index.forget_below(folder)
        shutil.rmtree(folder, ignore_errors=True)
    total = Cost.sum(counter.cost for counter in counting.counters)
    if total is None or not stopped:
        return total
    # Extrapolating from the first items is valid only if all items are of one kind, not for a run
    # of several stages.
    if done and not run.stage:
        return total.scaled(left / done)
    return replace(total, bound="at least")
