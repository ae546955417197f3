"""Attribute a whole data set: only what is missing, each batch durable before the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from attribution.methods import attribute_batches
from attribution.retrievers.base import Retriever
from attribution.types import Method, TextPair
from cache.store import ModelKey, Store


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


def precompute(
    retriever: Retriever,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    store: Store,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    retry_failed: bool = False,
) -> Progress:
    """Compute and store what the store lacks of `pairs`; stops between batches, resumes anywhere.

    `turn` is entered for each batch: a server passes its device's queue there.

    Raises:
        UserError: the store cannot be written; what was stored before stays.
    """
    todo = store.missing(model, method, pairs, retry=retry_failed)
    already = len(pairs) - len(todo)
    computed = failed = 0
    started = time.perf_counter()

    def progress(stopped: bool = False) -> Progress:
        return Progress(
            total=len(pairs),
            done=already + computed,
            computed=computed,
            failed=failed,
            seconds=time.perf_counter() - started,
            stopped=stopped,
        )

    on_progress(progress())
    # The retriever groups by length, longest first; taking turns batch by batch lets others in.
    outcomes = _in_turns(attribute_batches(retriever, method, todo, should_stop), turn)
    for batch in outcomes:
        results = [(o.pair, o.attribution) for o in batch if o.attribution is not None]
        failures = [(o.pair, o.reason) for o in batch if o.attribution is None]
        # At once: a resumed run then cuts the rest into the very batches of an uninterrupted one,
        # and its numbers are the same bit for bit.
        store.put(model, method, results, failures)
        computed += len(batch)
        failed += len(failures)
        on_progress(progress())
    return progress(stopped=computed < len(todo))


def _in_turns(batches: Iterable, turn: Callable[[], AbstractContextManager[object]]):
    iterator = iter(batches)
    while True:
        with turn():
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch
