"""Estimates what a run would send to an endpoint, before it starts. No Streamlit here."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.endpoint import EmbeddingEndpoint
from poslens.attribution.retrievers.endpoint_cost import Cost, Counter, counting
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Side
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.embeddings import EmbeddingStore, ReceivedVectors
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage import index
from poslens.cache.storage.files import CacheFolder, set_fallback
from poslens.cache.storage.store import ModelKey
from poslens.compute.runs import Job, Run, RunKey

MOST_S = 2.0
"""Maximum seconds of counting one job; the remaining items are extrapolated from those counted."""


class _Counted(ReceivedVectors):
    """Stored vectors, and in memory the placeholders of texts that were counted."""

    def __init__(
        self, store: EmbeddingStore, model: ModelKey, width: int, counted: dict[Hashable, Array]
    ) -> None:
        super().__init__(store, model, width)
        self._counted, self._fingerprint = counted, model.fingerprint

    def select(self, side: Side, texts: Sequence[str]) -> dict[str, Array]:
        keys = {text: (self._fingerprint, side, text) for text in texts}
        counted = {text: self._counted[key] for text, key in keys.items() if key in self._counted}
        return counted | super().select(side, [text for text in texts if text not in counted])

    def put(self, side: Side, vectors: Iterable[tuple[str, Array]]) -> None:
        self._counted |= {(self._fingerprint, side, text): vector for text, vector in vectors}


class Counting:
    """Replaces the retrievers of a `Compute` with ones that count the texts they would send. A text
    counts once, even if several jobs need its vector."""

    def __init__(self) -> None:
        self.counters: list[Counter] = []
        self._counted: dict[Hashable, Array] = {}

    def retriever(self, spec: RetrieverSpec, model: ModelKey, store: EmbeddingStore) -> Retriever:
        """A retriever that counts the texts for an endpoint, except those whose vector is stored.

        Raises:
            UserError: this model is not an endpoint, so counting would require computing its part.
        """
        if not spec.remote:
            raise UserError(
                f"The cost depends on {spec.name}, whose part hasn't been computed yet."
            )
        retriever, counter = counting(spec)
        self.counters.append(counter)
        if isinstance(retriever, EmbeddingEndpoint):
            return retriever.storing(_Counted(store, model, retriever.width, self._counted))
        return retriever


_costs: LRUCache[Cost | None] = LRUCache(128, made_again=False)


def cost_of(root: Path, jobs: Sequence[Job], retry_failed: bool) -> Cost | None:
    """The texts that `jobs`, which send texts, still have to send when they run one after the
    other, including those of failed items with `retry_failed`; None if that cannot be determined
    yet. `root` is the folder of their results."""
    store = EmbeddingStore(root)
    left: dict[RunKey, tuple[int, bool]] = {}
    state: list[object] = [root]
    for job in jobs:
        n_failed = len(job.failures()) if retry_failed else 0
        left[job.key] = job.total - job.n_done() + n_failed, n_failed > 0
        state += [job.key, left[job.key], n_failed, store.stamp(ModelKey(*job.key[:2]))]
    todo = [job for job in jobs if left[job.key][0]]
    return _costs.get(tuple(state), lambda: _counted(root, todo, left)) if todo else None


def _counted(
    root: Path, jobs: Sequence[Job], left: Mapping[RunKey, tuple[int, bool]]
) -> Cost | None:
    """The cost of jobs, counted in one folder, so that a text that several need counts once."""
    counting, folder = Counting(), Path(tempfile.mkdtemp(prefix="poslens-cost-"))
    set_fallback(folder / "cache", CacheFolder(root))  # so that only missing results are counted
    try:
        return Cost.sum(_count(job, folder, counting, *left[job.key]) for job in jobs)
    finally:
        set_fallback(folder / "cache", None)
        index.forget_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _count(
    job: Job, folder: Path, counting: Counting, left: int, retry_failed: bool
) -> Cost | None:
    assert job.sending is not None
    end, first = time.monotonic() + MOST_S, len(counting.counters)
    run = Run("", 0, retry_failed)
    done = 0

    def report(progress: Progress) -> None:
        nonlocal done
        done = progress.computed
        if time.monotonic() > end:
            run.stop()

    try:
        with stoppable(lambda: run.stopping or time.monotonic() > end):
            try:
                progress = job.sending.again(folder, counting).work(run, report)
                done = max(done, progress.computed)  # 0 if it was stopped within an item
                stopped = progress.stopped
            except Stopped:
                stopped = True
    except UserError:  # the run itself reports why it cannot be computed
        return None
    total = Cost.sum(counter.cost for counter in counting.counters[first:])
    if total is None:
        return None
    # Extrapolating from the first items is valid only if all items are of one kind, not for a run
    # of several stages.
    if stopped and done and not run.stage:
        return total.scaled(left / done)
    if stopped and job.sending.estimated is not None:
        return job.sending.estimated().scaled(left / job.total)
    if stopped:
        return replace(total, bound="at least")
    # Without texts, no placeholder determined what to send.
    return replace(total, bound="about") if job.sending.adaptive and total.texts else total
