"""Attribute a whole data set: only what is missing, each batch durable before the next.

Where batches are computed is an executor's matter, one device of this process (`OneDevice`) or
actors elsewhere (cache.ray_executor); what is missing, who claims it, and the store are here.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attribution.types import Attribution, Method, TextPair
from cache.jobs.claims import Claims
from cache.keys import text_fingerprint
from cache.storage.store import ModelKey

if TYPE_CHECKING:
    # Both load torch, which only a device in this process needs.
    from attribution.methods import Outcome
    from attribution.retrievers.base import Retriever

_WAIT_S = 0.5  # between looks at what another job is computing


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
        """Pairs per second of this run."""
        return self.computed / self.seconds if self.computed and self.seconds else None

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate for the rest."""
        rate = self.rate
        return (self.total - self.done) / rate if rate else None


class Executor(Protocol):
    """Where a model computes batches."""

    def batches(self, pairs: Sequence[TextPair]) -> Iterator[list[TextPair]]:
        """Pairs in the portions that it computes at a time."""
        ...

    def outcomes(self, batches: Iterator[list[TextPair]]) -> Iterator[list[Outcome]]:
        """Each batch's outcomes, in any order. A batch is taken from the iterator only when there
        is a device free for it, so that it is claimed no earlier."""
        ...


class Destination(Protocol):
    """Where results go: a `Store`, or a `part_files.PartWriter`. `root` is a folder of this host,
    where its jobs say what they are computing."""

    root: Path

    def missing(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], *, retry: bool = False
    ) -> list[TextPair]:
        """The pairs with neither a result nor, unless `retry`, a failure."""
        ...

    def put(
        self,
        model: ModelKey,
        method: Method,
        results: Sequence[tuple[TextPair, Attribution]],
        failures: Sequence[tuple[TextPair, str]] = (),
    ) -> None:
        """Keep results and failures: all or nothing, and durable when this returns."""
        ...


class OneDevice:
    """A model loaded in this process. `turn` is entered for each batch: a server passes its
    device's queue there."""

    def __init__(
        self,
        retriever: Retriever,
        method: Method,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
        max_tokens: int | None = None,
    ) -> None:
        self._retriever, self._method, self._turn = retriever, method, turn
        self._max_tokens = max_tokens

    def batches(self, pairs: Sequence[TextPair]) -> Iterator[list[TextPair]]:
        """Of like length, longest first."""
        from attribution.methods import pair_batches

        retriever = self._retriever
        return pair_batches(pairs, retriever.device.type, retriever.max_length, self._max_tokens)

    def outcomes(self, batches: Iterator[list[TextPair]]) -> Iterator[list[Outcome]]:
        """One after the other; taking turns batch by batch lets others in."""
        from attribution.methods import attribute_batch

        for batch in batches:
            with self._turn():
                found = attribute_batch(self._retriever, self._method, batch)
            yield found


def precompute(
    executor: Executor,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    store: Destination,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    retry_failed: bool = False,
) -> Progress:
    """Compute and store what the store lacks of `pairs`; stops between batches, resumes anywhere.

    Other jobs of this host on the same model and method share the work: what one of them is
    computing is left to it, and taken over if it dies. With `retry_failed` each job tries a failed
    pair once.

    Raises:
        UserError: the store cannot be written; what was stored before stays.
    """
    job = _Job(model, method, pairs, store, should_stop, on_progress, retry_failed)
    todo = job.missing(pairs)
    job.found(len(pairs) - len(todo))
    if todo:
        with Claims(claims_folder(store, model, method)) as claims:
            # Listed again: from here on, others that finish in between are noticed.
            listed = job.missing(todo)
            if len(listed) < len(todo):
                job.found(len(todo) - len(listed))
            job.run(executor, listed, claims)
    return job.progress()


def claims_folder(store: Destination, model: ModelKey, method: Method) -> Path:
    """Where jobs on a model and a method's core say what they are computing."""
    core = hashlib.sha256(method.core.encode()).hexdigest()[:16]
    return store.root / "claims" / f"{model.fingerprint}-{core}"


class _Job:
    """One run's bookkeeping."""

    def __init__(
        self,
        model: ModelKey,
        method: Method,
        pairs: Sequence[TextPair],
        store: Destination,
        should_stop: Callable[[], bool],
        on_progress: Callable[[Progress], None],
        retry_failed: bool,
    ) -> None:
        self._model, self._method, self._store = model, method, store
        self._should_stop, self._on_progress = should_stop, on_progress
        self._retry = retry_failed
        self._total = len(pairs)
        self._elsewhere = self._computed = self._failed = 0
        self._tried: set[str] = set()
        self._stopped = False
        self._started = time.perf_counter()

    def progress(self) -> Progress:
        """As of now."""
        done = self._elsewhere + self._computed
        return Progress(
            total=self._total,
            done=done,
            computed=self._computed,
            failed=self._failed,
            seconds=time.perf_counter() - self._started,
            stopped=done < self._total,
        )

    def missing(self, pairs: Sequence[TextPair]) -> list[TextPair]:
        """What of `pairs` this run still has to see done."""
        missing = self._store.missing(self._model, self._method, pairs, retry=self._retry)
        return [pair for pair in missing if _key(pair) not in self._tried]

    def found(self, stored: int) -> None:
        """So many were computed by others, before or meanwhile."""
        self._elsewhere += stored
        self._on_progress(self.progress())

    def run(self, executor: Executor, todo: list[TextPair], claims: Claims) -> None:
        """Compute `todo`, leaving to other jobs what they claim."""
        while todo and not self._stopped:
            left: list[TextPair] = []
            before = self._computed
            for outcomes in executor.outcomes(self._claimed(executor.batches(todo), claims, left)):
                self._keep(outcomes)
                claims.release(_key(outcome.pair) for outcome in outcomes)
                self._on_progress(self.progress())
            todo = self.missing(left)
            if len(todo) < len(left):
                self.found(len(left) - len(todo))
            if todo and self._computed == before and not self._stopped:
                time.sleep(_WAIT_S)

    def _claimed(
        self, batches: Iterator[list[TextPair]], claims: Claims, left: list[TextPair]
    ) -> Iterator[list[TextPair]]:
        """Batches without what other jobs have or had; what they are computing goes to `left`."""
        for batch in batches:
            if self._should_stop():
                self._stopped = True
                return
            mine = claims.take([_key(pair) for pair in batch])
            left += [pair for pair in batch if _key(pair) not in mine]
            batch = [pair for pair in batch if _key(pair) in mine]
            if batch and claims.contended:
                stored = batch
                batch = self.missing(batch)
                if len(batch) < len(stored):
                    claims.release(mine - {_key(pair) for pair in batch})
                    self.found(len(stored) - len(batch))
            if batch:
                yield batch

    def _keep(self, outcomes: Sequence[Outcome]) -> None:
        results = [(o.pair, o.attribution) for o in outcomes if o.attribution is not None]
        failures = [(o.pair, o.reason) for o in outcomes if o.attribution is None]
        # At once: a resumed run then cuts the rest into the very batches of an uninterrupted one,
        # and its numbers are the same bit for bit.
        self._store.put(self._model, self._method, results, failures)
        self._tried.update(_key(pair) for pair, _ in failures)
        self._computed += len(outcomes)
        self._failed += len(failures)


def _key(pair: TextPair) -> str:
    return f"{pair.dataset}\0{pair.pair_id}\0{text_fingerprint(pair)}"
