"""How a corpus search scores documents against its queries: a scorer for each kind of retriever
that reads documents one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.retrievers.base import Pooled, Representation, Separate
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.family import Search
from poslens.attribution.retrievers.late_interaction import Vectors
from poslens.attribution.retrievers.scoring import DeviceSlot, in_batches
from poslens.attribution.types import Side

_QUERIES_AT_ONCE = 512

Vectorise = Callable[[Sequence[str], Side], Tensor]
Read = Callable[[Sequence[str], Side], Iterator[tuple[list[int], Representation]]]
"""Representations of texts of one side, batch by batch, with the texts' numbers."""
OnBatch = Callable[[int], None]
"""Told how many texts the model has read, after each batch."""


def _unheard(n: int) -> None:
    """Nobody counts."""


class Scorer(Protocol):
    """How a family scores texts against the queries it was made with."""

    def __call__(self, rows: Sequence[int], documents: Sequence[str]) -> Tensor:
        """Scores [len(rows), len(documents)]; minus infinity where nothing can be found."""


def scorer(
    retriever: Pooled,
    queries: Sequence[str],
    vectorise: Vectorise | None = None,
    device_slot: DeviceSlot = nullcontext,
    on_batch: OnBatch = _unheard,
) -> Scorer:
    """The scorer of a retriever that reads documents one by one.

    `vectorise` gives a dense model's vectors [n, H], from a store perhaps, and may raise Stopped;
    without it each batch that the model reads enters `device_slot`, and `on_batch` is told of it.

    Raises:
        UserError: the family is scored otherwise (BM25, cross-encoders).
    """
    scorers: dict[Search, Callable[[], Scorer]] = {
        "vectors": lambda: Dense(retriever, queries, vectorise, device_slot, on_batch),
        "term_weights": lambda: Sparse(read, queries),
        "token_vectors": lambda: LateInteraction(retriever, read, queries),
    }
    read = partial(_read, retriever, device_slot=device_slot, on_batch=on_batch)
    way = family_of(retriever.spec).search
    if way not in scorers:
        raise UserError(f"{retriever.name} has no vectors to search: rerank with it instead.")
    return scorers[way]()


def readable(retriever: Separate, texts: Sequence[str], side: Side) -> list[bool]:
    """Of which texts the retriever reads at least one token."""
    try:
        retriever.encode_plain(texts, side)
    except UserError:
        if len(texts) == 1:
            return [False]
        half = len(texts) // 2
        return readable(retriever, texts[:half], side) + readable(retriever, texts[half:], side)
    return [True] * len(texts)


def _read(
    retriever: Separate,
    texts: Sequence[str],
    side: Side,
    device_slot: DeviceSlot,
    on_batch: OnBatch,
) -> Iterator[tuple[list[int], Representation]]:
    """What the retriever makes of texts, batch by batch of like length, with their numbers; texts
    without a token are left out."""
    read_rows = [number for number, ok in enumerate(readable(retriever, texts, side)) if ok]

    def embed(numbers: list[int]) -> Representation:
        encoded = retriever.encode_plain([texts[number] for number in numbers], side)
        return retriever.embed(encoded).detach()

    read = in_batches(
        retriever, embed, read_rows, lambda i: estimated_tokens(texts[i]), device_slot=device_slot
    )
    for numbers, representation in read:
        on_batch(len(numbers))
        yield numbers, representation


class Dense:
    """Vectors compared by the model's own similarity."""

    def __init__(
        self,
        retriever: Pooled,
        queries: Sequence[str],
        vectorise: Vectorise | None = None,
        device_slot: DeviceSlot = nullcontext,
        on_batch: OnBatch = _unheard,
    ) -> None:
        self._retriever, self._device_slot, self._on_batch = retriever, device_slot, on_batch
        self._vectorise = vectorise or self._embed
        read_rows, vectors = self._vectors(queries, "query")
        self._known = torch.zeros(len(queries), dtype=torch.bool)
        self._known[read_rows] = True
        self._queries = torch.zeros(len(queries), vectors.shape[-1])
        self._queries[read_rows] = vectors

    def _embed(self, texts: Sequence[str], side: Side) -> Tensor:
        arrays: dict[int, Tensor] = {}
        for numbers, vectors in _read(
            self._retriever, texts, side, self._device_slot, self._on_batch
        ):
            arrays |= dict(zip(numbers, vectors.float().cpu(), strict=True))
        if len(arrays) < len(texts):
            raise UserError(f"{self._retriever.name} reads no token of a text: leave it out.")
        return torch.stack([arrays[number] for number in range(len(texts))])

    def _vectors(self, texts: Sequence[str], side: Side) -> tuple[list[int], Tensor]:
        """Vectors [n, H] of those texts that the model can read, and their numbers."""
        try:
            return list(range(len(texts))), self._vectorise(texts, side).float().cpu()
        except Stopped:
            raise
        except UserError:
            read_rows = [n for n, ok in enumerate(readable(self._retriever, texts, side)) if ok]
            if len(read_rows) == len(texts):
                raise
        if not read_rows:
            return [], torch.zeros(0, 0)
        return read_rows, self._vectorise([texts[n] for n in read_rows], side).float().cpu()

    def __call__(self, rows: Sequence[int], documents: Sequence[str]) -> Tensor:
        """Similarities."""
        scores = torch.full((len(rows), len(documents)), float("-inf"))
        readable_rows, vectors = self._vectors(documents, "document")
        asked = torch.as_tensor(rows)
        if readable_rows and self._queries.shape[1]:
            similarity = self._retriever.similarities(self._queries[asked], vectors)
            scores[:, readable_rows] = similarity.float()
            scores[~self._known[asked]] = float("-inf")
        return scores


class Sparse:
    """Weights of vocabulary terms; a document that shares no term is not found."""

    def __init__(self, read: Read, queries: Sequence[str]) -> None:
        self._read = read
        self._queries = {
            number: vector.float().cpu().to_sparse()
            for numbers, weights in read(queries, "query")
            for number, vector in zip(numbers, weights, strict=True)
        }

    def __call__(self, rows: Sequence[int], documents: Sequence[str]) -> Tensor:
        """Dot products."""
        scores = torch.full((len(rows), len(documents)), float("-inf"))
        readable_rows = [at for at, row in enumerate(rows) if row in self._queries]
        if not readable_rows:
            return scores
        asked = torch.stack([self._queries[rows[at]] for at in readable_rows])
        for numbers, weights in self._read(documents, "document"):
            products = torch.sparse.mm(asked, weights.float().cpu().T)
            products[products <= 0] = float("-inf")
            scores[torch.tensor(readable_rows)[:, None], torch.tensor(numbers)] = products
        return scores


class LateInteraction:
    """A vector for each token, compared by the model's own MaxSim."""

    def __init__(self, retriever: Separate, read: Read, queries: Sequence[str]) -> None:
        self._retriever, self._read = retriever, read
        self._queries = {
            number: (vectors.tokens[at], vectors.mask[at])
            for numbers, vectors in read(queries, "query")
            for at, number in enumerate(numbers)
        }

    def __call__(self, rows: Sequence[int], documents: Sequence[str]) -> Tensor:
        """MaxSim."""
        scores = torch.full((len(rows), len(documents)), float("-inf"))
        readable_rows = [at for at, row in enumerate(rows) if row in self._queries]
        for numbers, read in self._read(documents, "document"):
            for at, number in enumerate(numbers):
                vectors = Vectors(read.tokens[at : at + 1], read.mask[at : at + 1])
                if not bool(vectors.mask.any()):
                    continue
                for start in range(0, len(readable_rows), _QUERIES_AT_ONCE):
                    some = readable_rows[start : start + _QUERIES_AT_ONCE]
                    asked = self._padded([rows[i] for i in some])
                    values = self._retriever.similarity(asked, vectors)
                    scores[some, number] = values.float().cpu()
        return scores

    def _padded(self, rows: Sequence[int]) -> Vectors:
        pad = torch.nn.utils.rnn.pad_sequence
        return Vectors(
            pad([self._queries[row][0] for row in rows], batch_first=True),
            pad([self._queries[row][1] for row in rows], batch_first=True),
        )
