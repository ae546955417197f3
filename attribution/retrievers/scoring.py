"""Scores of many pairs of texts without gradients, for interventions and rankings.

A score equals that of an attribution of the same pair (same prompts, same truncation), but takes
less time: each distinct text of a side is embedded once, texts of similar length run together, and
token offsets are not computed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from poslens.attribution.batching import R, T, batch_tokens, batches, estimated_tokens, run_batches
from poslens.attribution.retrievers.base import (
    Joint,
    Representation,
    Retriever,
    Separate,
    compare,
    reads_jointly,
    separate,
)
from poslens.attribution.retrievers.late_interaction import Vectors
from poslens.attribution.types import Array, Side, TextPair, as_array

Text = tuple[str, str]
"""A query and a document."""

_START = 256
"""Only texts that share this many first characters are tokenized to see whether they differ only
past the context limit: edited versions of one document can, documents of a corpus rarely do."""

DeviceSlot = Callable[[], AbstractContextManager[object]]
"""Entered for each batch: a server passes its device queue."""


class Known(Protocol):
    """Representations of texts for later pairs of a run. It may drop entries."""

    def find(self, key: Hashable) -> Representation | None:
        """The value stored under `key`: a side and a text, or another key."""

    def keep(self, key: Hashable, value: Representation) -> Representation:
        """Store `value`."""


def size(representation: Representation) -> int:
    """Bytes of the representation of a text, or of several."""
    if isinstance(representation, torch.Tensor):
        return representation.nbytes
    if isinstance(representation, Vectors):
        return representation.tokens.nbytes + representation.mask.nbytes
    return sum(map(size, representation)) if isinstance(representation, list) else 0


def score_texts(
    retriever: Retriever,
    pairs: Sequence[Text],
    *,
    cached: Known | None = None,
) -> Array:
    """Scores [n] of `pairs` (query, document), in order, for a retriever of any family.

    Equal pairs are scored once. If query and document are encoded separately, queries are embedded
    first and stay in memory; a document's representation is compared with all of its queries and
    dropped. Representations in `cached` are reused. `retriever.lock` is held for one batch at a
    time.

    Raises:
        Stopped: the work was stopped.
        UserError: a text has no text tokens, a document does not fit into memory, or a score is not
            finite.
    """
    numbers_of: dict[Text, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        numbers_of[pair].append(number)
    if reads_jointly(retriever):
        scored = _joint(retriever, list(numbers_of))
    else:
        scored = _separate(separate(retriever), list(numbers_of), cached)
    scores: NDArray[np.float64] = np.empty(len(pairs))
    for pair, value in scored:
        scores[numbers_of[pair]] = value
    return as_array(scores, (len(pairs),), "a score")


def in_batches(
    retriever: Retriever,
    read: Callable[[list[T]], R],
    items: Sequence[T],
    tokens: Callable[[T], int],
    device_slot: DeviceSlot = nullcontext,
    max_tokens: int | None = None,
) -> Iterator[tuple[list[T], R]]:
    """Results of `read` for items without gradients, in batches of similar length by estimated
    `tokens`; batches that do not fit into memory are split.

    A batch has up to `max_tokens` (by default a number suited to the device). For each,
    `device_slot` is entered and `retriever.lock` is held.

    Raises:
        Stopped, UserError: as `run_batches`.
    """

    def run(part: list[T]) -> R:
        # No-grad rather than inference mode: tensors that a model caches (tables of positions, say)
        # must work in a later run with gradients. It is as fast.
        with device_slot(), retriever.lock, torch.no_grad():
            return read(part)

    limit = batch_tokens(retriever.device.type) if max_tokens is None else max_tokens
    alike = batches(items, lambda item: min(tokens(item), retriever.max_length), limit)
    return run_batches(run, alike)


def read_texts(
    retriever: Separate,
    texts: Iterable[str],
    side: Side,
    *,
    device_slot: DeviceSlot = nullcontext,
    cached: Known | None = None,
) -> Iterator[tuple[list[str], Representation]]:
    """The representation of each distinct text of one side, batch by batch and without gradients:
    first those in `cached`, then the others, which are added to `cached`. Texts that differ only
    past the context limit are embedded once.

    Raises:
        Stopped, UserError: as `score_texts`.
    """
    limit = None
    if retriever.family == "lexical":
        limit, cached = 1, None  # a placeholder that counts texts and runs no model

    def embed(batch: list[str]) -> Representation:
        return retriever.embed(retriever.encode_plain(batch, side))

    # All are looked up before the first is computed, because new entries can replace others.
    cached_of = {text: None if cached is None else cached.find((side, text)) for text in texts}
    yield from (
        ([text], representation)
        for text, representation in cached_of.items()
        if representation is not None
    )
    new = [text for text, representation in cached_of.items() if representation is None]
    starts = Counter(text[:_START] for text in new)
    same: dict[Hashable, list[str]] = defaultdict(list)
    for text in new:
        alike = starts[text[:_START]] > 1 and estimated_tokens(text) >= retriever.max_length
        same[_reading(retriever, text, side) if alike else text].append(text)
    groups = {texts[0]: texts for texts in same.values()}
    read = in_batches(retriever, embed, list(groups), estimated_tokens, device_slot, limit)
    for batch, representation in read:
        if cached is not None:
            for row, first in enumerate(batch):
                for text in groups[first]:
                    cached.keep((side, text), rows_of(representation, [row]))
        rows = [row for row, first in enumerate(batch) for _ in groups[first]]
        if len(rows) > len(batch):
            representation = rows_of(representation, rows)
        yield [text for first in batch for text in groups[first]], representation


def _reading(retriever: Separate, text: str, side: Side) -> Hashable:
    """The token ids that the model reads of a text, or the text if it reads no tokens."""
    ids = retriever.encode_plain([text], side).features.get("input_ids")
    return text if ids is None else ids.cpu().numpy().tobytes()


def rows_of(representation: Representation, rows: list[int]) -> Representation:
    """Some rows of a batch's representation."""
    return (
        representation[rows]
        if isinstance(representation, torch.Tensor | Vectors)
        else representation
    )


def _joint(retriever: Joint, pairs: list[Text]) -> Iterator[tuple[Text, float]]:
    def score(batch: list[Text]) -> list[float]:
        encoded, _ = retriever.encode_pairs([TextPair("", q, d) for q, d in batch])
        scores: list[float] = retriever.embed(encoded).cpu().double().tolist()
        return scores

    def tokens(pair: Text) -> int:
        return estimated_tokens(pair[0]) + estimated_tokens(pair[1])

    for batch, scores in in_batches(retriever, score, pairs, tokens):
        yield from zip(batch, scores, strict=True)


def _separate(
    retriever: Separate, pairs: list[Text], cached: Known | None
) -> Iterator[tuple[Text, float]]:
    queries_of: dict[str, list[str]] = defaultdict(list)
    for query, document in pairs:
        queries_of[document].append(query)
    read = partial(read_texts, retriever, cached=cached)
    held = {
        query: rows_of(representation, [row])
        for batch, representation in read([query for query, _ in pairs], "query")
        for row, query in enumerate(batch)
    }
    for batch, representation in read(queries_of, "document"):
        places: dict[str, list[int]] = defaultdict(list)
        for row, document in enumerate(batch):
            for query in queries_of[document]:
                places[query].append(row)
        with retriever.lock, torch.no_grad():
            scores = torch.cat(
                [
                    compare(retriever, rows_of(representation, rows), held[query], "document")
                    for query, rows in places.items()
                ]
            )
        texts = [(query, batch[row]) for query, rows in places.items() for row in rows]
        yield from zip(texts, scores.cpu().double().tolist(), strict=True)
