"""Runs methods over many pairs, in batches of similar length; a failed pair does not stop
others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poslens.attribution.batching import Halving, batch_tokens, batches, estimated_tokens
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import RunEnded, UserError
from poslens.attribution.methods.base import METHODS, MethodEntry
from poslens.attribution.retrievers.base import Retriever, reads_jointly
from poslens.attribution.types import Attribution, Method, TextPair


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pair with its result, or with the sentence that explains why there is none."""

    pair: TextPair
    attribution: Attribution | None
    reason: str = ""


SHARING = 8
"""Number of pairs of one document that always stay together, however long it is: each pair then
costs a backward pass and an eighth of the document's forward pass."""


def pair_batches(
    pairs: Sequence[TextPair],
    device: str,
    max_length: int,
    max_tokens: int | None = None,
    *,
    jointly: bool = False,
    one_document: bool = False,
) -> Iterator[list[TextPair]]:
    """Pairs in batches of similar length, longest first, for a retriever on a device of this type
    that reads up to `max_length` tokens of a document.

    Pairs of one document stay together, because they share its forward pass: n of them cost
    (1 + n) / 2 times as much as one. If query and document are read `jointly`, nothing is shared.
    With `one_document`, a batch has pairs of a single document.
    """
    if max_tokens is None:
        max_tokens = batch_tokens(device)
    of_document: dict[str | int, list[TextPair]] = {}
    for number, pair in enumerate(pairs):
        of_document.setdefault(number if jointly else pair.document, []).append(pair)
    length_of = {
        key: min(estimated_tokens(pairs[0].document), max_length)
        for key, pairs in of_document.items()
    }
    groups = [
        (length_of[key], pairs[start : start + most])
        for key, pairs in of_document.items()
        for most in [max(SHARING, 2 * max_tokens // length_of[key] - 1)]
        for start in range(0, len(pairs), most)
    ]

    def cost(group: tuple[int, list[TextPair]]) -> int:
        length, chosen_pairs = group
        return length * (1 + len(chosen_pairs)) // 2

    def alike(group: tuple[int, list[TextPair]]) -> tuple[int, int, int]:
        # Documents of about the same length (an eighth of an octave, 9%) and with as many pairs:
        # little padding, and few wait for the document with the most pairs.
        length, chosen_pairs = group
        return int(8 * math.log2(length)), len(chosen_pairs), length

    for batch in batches(groups, cost, 1 if one_document else max_tokens, alike):
        yield [pair for _, pairs in batch for pair in pairs]


def attribute_batch(
    retriever: Retriever, method: Method, batch: Sequence[TextPair], halving: Halving
) -> list[Outcome]:
    """Attribute pairs together. If one fails, the batch is computed again pair by pair, so the
    others have results. `halving` belongs to the run; it is applied here rather than around batches
    (as in `run_batches`), so that a pair that exceeds memory is that pair's failure."""
    entry = METHODS[method.name]
    if entry.needs_query and not all(pair.query for pair in batch):
        some = [pair for pair in batch if pair.query]
        asked = iter(attribute_batch(retriever, method, some, halving))
        return [
            next(asked) if pair.query else Outcome(pair, None, _no_query(entry)) for pair in batch
        ]
    if not batch:
        return []

    def timed(part: list[TextPair]) -> list[Attribution]:
        started = time.perf_counter()
        results = entry.compute(retriever, method, part)
        seconds = (time.perf_counter() - started) / len(part)
        return [replace(result, seconds=seconds) for result in results]

    try:
        results = halving(timed, list(batch))
    except RunEnded:
        raise
    except UserError as error:
        if len(batch) == 1:
            return [Outcome(batch[0], None, str(error))]
        return [
            outcome
            for pair in batch
            for outcome in attribute_batch(retriever, method, [pair], halving)
        ]
    return [Outcome(pair, result) for pair, result in zip(batch, results, strict=True)]


def _no_query(entry: MethodEntry) -> str:
    others = " or ".join(entry.title for entry in METHODS.values() if not entry.needs_query)
    return (
        f"{entry.title} needs a query, but this document has none: choose {others}, or use Audit, "
        "which searches the documents for their own sentences."
    )


def attribute_batches(
    retriever: Retriever,
    method: Method,
    pairs: Sequence[TextPair],
    max_tokens: int | None = None,
) -> Iterator[list[Outcome]]:
    """Attribute all pairs batch by batch.

    Raises:
        Stopped: the work was stopped.
    """
    jointly = reads_jointly(retriever)
    device, length = retriever.device.type, retriever.max_length
    halving = Halving()
    alone = METHODS[method.name].one_document
    for batch in pair_batches(
        pairs, device, length, max_tokens, jointly=jointly, one_document=alone
    ):
        checkpoint()
        yield attribute_batch(retriever, method, batch, halving)
