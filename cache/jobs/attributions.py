"""Compute attributions of a whole data set.

An executor decides where batches are computed: on one device of this process (`OneDevice`) or in
actors elsewhere (`poslens.cache.jobs.ray_executor`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

from poslens.attribution.errors import UserError
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs import loop
from poslens.cache.jobs.claims import claims_folder
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage.encoded import Computed, Destination, encoded
from poslens.cache.storage.store import ModelKey

if TYPE_CHECKING:
    # Both import torch, which only a device in this process needs.
    from poslens.attribution.methods import Outcome
    from poslens.attribution.retrievers.base import Retriever


def computed(outcomes: Sequence[Outcome], method: Method) -> Computed:
    """The outcomes of `method`, encoded where they were computed. A result larger than the store's
    limit becomes a failure of its pair."""
    done = [(o.pair, o.attribution) for o in outcomes if o.attribution is not None]
    failures = [(o.pair, o.reason) for o in outcomes if o.attribution is None]
    try:
        return encoded(done, method, failures)
    except UserError as too_large:
        if len(done) == 1:
            return encoded([], method, [*failures, (done[0][0], str(too_large))])
    return Computed.merged([computed([outcome], method) for outcome in outcomes])


class Executor(Protocol):
    """Where a model computes batches."""

    def batches(self, pairs: Sequence[TextPair]) -> Iterator[list[TextPair]]:
        """The pairs, split into the batches that are computed at a time."""

    def compute(self, batches: Iterator[list[TextPair]]) -> Iterator[Computed]:
        """Yield the outcomes of batches, one or several at a time and in any order. A batch is
        taken from the iterator only when a device is free, so that it is not claimed too early."""


class OneDevice:
    """A model loaded in this process. `device_slot` is entered for each batch: a server passes its
    device queue."""

    def __init__(
        self,
        retriever: Retriever,
        method: Method,
        device_slot: Callable[[], AbstractContextManager[object]] = nullcontext,
        max_tokens: int | None = None,
    ) -> None:
        self._retriever, self._method, self._device_slot = retriever, method, device_slot
        self._max_tokens = max_tokens

    def batches(self, pairs: Sequence[TextPair]) -> Iterator[list[TextPair]]:
        """Batches of pairs of similar length, longest first."""
        from poslens.attribution.methods import METHODS, pair_batches
        from poslens.attribution.retrievers.base import reads_jointly

        retriever = self._retriever
        return pair_batches(
            pairs,
            retriever.device.type,
            retriever.max_length,
            self._max_tokens,
            jointly=reads_jointly(retriever),
            one_document=METHODS[self._method.name].one_document,
        )

    def compute(self, batches: Iterator[list[TextPair]]) -> Iterator[Computed]:
        """Compute batches one after the other; the device slot is released between batches, so that
        other requests get a turn."""
        from poslens.attribution.batching import Halving
        from poslens.attribution.methods import attribute_batch

        halving = Halving()
        for batch in batches:
            with self._device_slot():
                outcomes = attribute_batch(self._retriever, self._method, batch, halving)
            yield computed(outcomes, self._method)


def precompute(
    executor: Executor,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    store: Destination,
    *,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Compute and store the results that the store lacks of `pairs`. Stops between batches and can
    be resumed at any point.

    Jobs of this host on the same model and method share the work: pairs claimed by another job are
    left to it, and taken over if it dies. The executor handles device slots.

    Raises:
        UserError: the store can't be written; results stored before remain.
    """

    def stored(computed: Computed) -> tuple[list[TextPair], list[TextPair]]:
        store.put_encoded(model, method, computed)
        return computed.pairs, [pair for pair, _ in computed.failures]

    work = loop.Work(
        claims_folder(store.root, model, method),
        key=lambda pair: f"{pair.dataset}\0{pair.pair_id}\0{text_fingerprint(pair)}",
        missing=partial(store.missing, model, method, retry=options.retry_failed),
        batches=executor.batches,
        compute=executor.compute,
        store=stored,
    )
    return loop.run(work, pairs, options=options)


def shard(pairs: Sequence[TextPair], number: int, of: int) -> list[TextPair]:
    """The pairs of shard `number` (counted from 1) of `of` shards. The assignment is the same on
    every host. Pairs that share a document are in the same shard, so that the document is computed
    once.

    Raises:
        UserError: there is no such shard.
    """
    if not 1 <= number <= of:
        raise UserError(f"There is no shard {number} of {of}: use a number from 1 to {of}.")
    number_of: dict[str, int] = {}

    def of_document(text: str) -> int:
        if text not in number_of:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            number_of[text] = int.from_bytes(digest[:8], "big") % of
        return number_of[text]

    return [pair for pair in pairs if of_document(pair.document) == number - 1]
