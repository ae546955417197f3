"""Scores of many pairs of texts, without gradients: what interventions and rankings are read from.

A score is the one that attributions of the same pair give (same prompts, same cut), only faster:
each distinct text of a side is embedded once, texts of like length run together, and no token is
placed in its text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from attribution.batching import T, batch_tokens, batches, estimated_tokens, halving
from attribution.errors import Stopped
from attribution.retrievers.base import (
    Joint,
    Representation,
    Retriever,
    Separate,
    compare,
    reads_jointly,
    separate,
)
from attribution.retrievers.late_interaction import Vectors
from attribution.types import Array, TextPair, as_array

Text = tuple[str, str]
"""A query and a document."""


def score_texts(
    retriever: Retriever,
    pairs: Sequence[Text],
    *,
    should_stop: Callable[[], bool] = lambda: False,
    max_tokens: int | None = None,
) -> Array:
    """Scores [n] of `pairs` (query, document), in their order, for a retriever of any family.

    Equal pairs are scored once. Where query and document are read apart, queries are embedded
    first and kept; a document's vectors are compared with every query that asks for it and
    dropped. A batch holds `max_tokens` (what suits the device by default); `retriever.lock` is
    held for a batch at a time, and `should_stop` is asked before each.

    Raises:
        Stopped: `should_stop` said so.
        UserError: a text has no token that is text, one document does not fit into memory, or a
            score is not finite.
    """
    wanted: dict[Text, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        wanted[pair].append(number)
    if max_tokens is None:
        max_tokens = batch_tokens(retriever.device.type)
    asked = (list(wanted), max_tokens, should_stop)
    if reads_jointly(retriever):
        scored = _joint(retriever, *asked)
    else:
        scored = _separate(separate(retriever), *asked)
    scores: NDArray[np.float64] = np.empty(len(pairs))
    for pair, value in scored:
        scores[wanted[pair]] = value
    return as_array(scores, (len(pairs),), "a score")


def _joint(
    retriever: Joint, pairs: list[Text], limit: int, should_stop: Callable[[], bool]
) -> Iterator[tuple[Text, float]]:
    def run(batch: list[Text]) -> list[float]:
        with retriever.lock, torch.no_grad():
            encoded, _ = retriever.encode_pairs([TextPair("", q, d) for q, d in batch])
            scores: list[float] = retriever.embed(encoded).cpu().double().tolist()
            return scores

    def length(pair: Text) -> int:
        return min(estimated_tokens(pair[0]) + estimated_tokens(pair[1]), retriever.max_length)

    for batch in _asking(should_stop, batches(pairs, length, limit)):
        yield from zip(batch, halving(run, batch), strict=True)


def _separate(
    retriever: Separate, pairs: list[Text], limit: int, should_stop: Callable[[], bool]
) -> Iterator[tuple[Text, float]]:
    queries_of: dict[str, list[str]] = defaultdict(list)
    for query, document in pairs:
        queries_of[document].append(query)
    if retriever.family == "lexical":
        limit = 1  # it counts one text at a time

    def length(text: str) -> int:
        return min(estimated_tokens(text), retriever.max_length)

    def read_queries(batch: list[str]) -> list[Representation]:
        # No gradients rather than inference mode: what a model keeps of a run (tables of
        # positions, say) has to serve the next one that needs gradients. It is as fast.
        with retriever.lock, torch.no_grad():
            vectors = retriever.embed(retriever.encode_plain(batch, "query"))
        return [_rows(vectors, [row]) for row in range(len(batch))]

    def read_documents(batch: list[str]) -> list[list[tuple[Text, float]]]:
        places: dict[str, list[int]] = defaultdict(list)
        for row, document in enumerate(batch):
            for query in queries_of[document]:
                places[query].append(row)
        with retriever.lock, torch.no_grad():
            vectors = retriever.embed(retriever.encode_plain(batch, "document"))
            scores = torch.cat(
                [
                    compare(retriever, _rows(vectors, rows), held[query], "document")
                    for query, rows in places.items()
                ]
            )
        texts = [(query, batch[row]) for query, rows in places.items() for row in rows]
        return [list(zip(texts, scores.cpu().double().tolist(), strict=True))]

    held: dict[str, Representation] = {}
    queries = list(dict.fromkeys(query for query, _ in pairs))
    for batch in _asking(should_stop, batches(queries, length, limit)):
        held.update(zip(batch, halving(read_queries, batch), strict=True))
    for batch in _asking(should_stop, batches(list(queries_of), length, limit)):
        for found in halving(read_documents, batch):
            yield from found


def _rows(vectors: Representation, rows: list[int]) -> Representation:
    """Some of what `embed` made of a batch."""
    return vectors[rows] if isinstance(vectors, torch.Tensor | Vectors) else vectors


def _asking(should_stop: Callable[[], bool], parts: Iterable[list[T]]) -> Iterator[list[T]]:
    for part in parts:
        if should_stop():
            raise Stopped("Stopped before all scores were there; start again to go on.")
        yield part
