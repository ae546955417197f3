"""How a corpus search scores documents against its queries: a scorer for each kind of retriever
that reads documents one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import compress

import torch
from torch import Tensor

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.errors import RunEnded, UserError
from poslens.attribution.retrievers.base import Pooled, Representation, Separate
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.late_interaction import Vectors
from poslens.attribution.retrievers.scoring import DeviceSlot, in_batches
from poslens.attribution.types import Side

_QUERIES_AT_ONCE = 512

Vectorise = Callable[[Sequence[str], Side], Tensor]
Read = Callable[[Sequence[str], Side], Iterator[tuple[list[int], Representation]]]
"""Representations of texts of one side, batch by batch, with the texts' numbers."""
Scorer = Callable[[Sequence[int], Sequence[str]], Tensor]
"""Scores [R, n] of the queries with these R numbers and of n documents; minus infinity where
nothing can be found."""


def scorer(
    retriever: Pooled,
    queries: Sequence[str],
    vectorise: Vectorise | None = None,
    device_slot: DeviceSlot = nullcontext,
    on_batch: Callable[[int], None] = lambda n_texts: None,
) -> Scorer:
    """The scorer of a retriever that reads documents one by one.

    `vectorise` returns a dense model's vectors [n, H], for example from a store, and can raise
    Stopped. Without it, the model encodes each batch within `device_slot`, and `on_batch` receives
    the number of its texts.

    Raises:
        UserError: the family is scored in another way (BM25, cross-encoders).
    """
    read = partial(_read, retriever, device_slot=device_slot, on_batch=on_batch)
    way = family_of(retriever.spec).search
    if way == "vectors":
        return dense(retriever, queries, vectorise or partial(_vectors, retriever.name, read))
    if way == "term_weights":
        return _sparse(read, queries)
    if way == "token_vectors":
        return _late_interaction(retriever, read, queries)
    raise UserError(f"{retriever.name} can't search a corpus: use it as a reranker.")


def readable(retriever: Separate, texts: Sequence[str], side: Side) -> list[bool]:
    """For each text, whether the retriever reads at least one token of it."""
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
    on_batch: Callable[[int], None],
) -> Iterator[tuple[list[int], Representation]]:
    """Representations of texts in batches of similar length, with the texts' numbers; texts without
    a token are skipped."""

    def embed(numbers: list[int]) -> Representation:
        encoded = retriever.encode_plain([texts[number] for number in numbers], side)
        return retriever.embed(encoded).detach()

    read_rows = list(compress(range(len(texts)), readable(retriever, texts, side)))
    read = in_batches(
        retriever, embed, read_rows, lambda i: estimated_tokens(texts[i]), device_slot=device_slot
    )
    for numbers, representation in read:
        on_batch(len(numbers))
        yield numbers, representation


def _vectors(name: str, read: Read, texts: Sequence[str], side: Side) -> Tensor:
    """Vectors [n, H] of texts, each of which the model must be able to read."""
    vectors: dict[int, Tensor] = {}
    for numbers, batch in read(texts, side):
        vectors |= zip(numbers, batch.float().cpu(), strict=True)
    if len(vectors) < len(texts):
        raise UserError(f"{name} can't read any token of a text: remove the text.")
    return torch.stack([vectors[number] for number in range(len(texts))])


def dense(retriever: Pooled, queries: Sequence[str], vectorise: Vectorise) -> Scorer:
    """Vectors compared by the model's own similarity."""

    def vectors_of(texts: Sequence[str], side: Side) -> tuple[list[int], Tensor]:
        """The numbers of those texts that the model can read, and their vectors [n, H]."""
        try:
            return list(range(len(texts))), vectorise(texts, side).float().cpu()
        except RunEnded:
            raise
        except UserError:
            read_rows = list(compress(range(len(texts)), readable(retriever, texts, side)))
            if len(read_rows) == len(texts):
                raise
        if not read_rows:
            return [], torch.zeros(0, 0)
        return read_rows, vectorise([texts[n] for n in read_rows], side).float().cpu()

    read_queries, vectors = vectors_of(queries, "query")
    is_read = torch.zeros(len(queries), dtype=torch.bool)
    is_read[read_queries] = True
    query_vectors = torch.zeros(len(queries), vectors.shape[-1])
    query_vectors[read_queries] = vectors

    def score(rows: Sequence[int], documents: Sequence[str]) -> Tensor:
        scores = torch.full((len(rows), len(documents)), float("-inf"))
        read_documents, vectors = vectors_of(documents, "document")
        asked = torch.as_tensor(rows)
        if read_documents and query_vectors.shape[1]:
            similarity = retriever.similarities(query_vectors[asked], vectors)
            scores[:, read_documents] = similarity.float()
            scores[~is_read[asked]] = float("-inf")
        return scores

    return score


def _sparse(read: Read, queries: Sequence[str]) -> Scorer:
    """Dot products of weights of vocabulary terms; a document that shares no term is not found."""
    weights_of = {
        number: vector.float().cpu().to_sparse()
        for numbers, weights in read(queries, "query")
        for number, vector in zip(numbers, weights, strict=True)
    }

    def score(rows: Sequence[int], documents: Sequence[str]) -> Tensor:
        scores = torch.full((len(rows), len(documents)), float("-inf"))
        read_rows = [at for at, row in enumerate(rows) if row in weights_of]
        if not read_rows:
            return scores
        asked = torch.stack([weights_of[rows[at]] for at in read_rows])
        for numbers, weights in read(documents, "document"):
            products = torch.sparse.mm(asked, weights.float().cpu().T)
            products[products <= 0] = float("-inf")
            scores[torch.tensor(read_rows)[:, None], torch.tensor(numbers)] = products
        return scores

    return score


def _late_interaction(retriever: Separate, read: Read, queries: Sequence[str]) -> Scorer:
    """A vector for each token, compared by the model's own MaxSim."""
    tokens_of = {
        number: (vectors.tokens[at], vectors.mask[at])
        for numbers, vectors in read(queries, "query")
        for at, number in enumerate(numbers)
    }

    def padded(rows: Sequence[int]) -> Vectors:
        tokens, masks = zip(*(tokens_of[row] for row in rows), strict=True)
        pad = torch.nn.utils.rnn.pad_sequence
        return Vectors(pad(list(tokens), batch_first=True), pad(list(masks), batch_first=True))

    def score(rows: Sequence[int], documents: Sequence[str]) -> Tensor:
        scores = torch.full((len(rows), len(documents)), float("-inf"))
        read_rows = [at for at, row in enumerate(rows) if row in tokens_of]
        for numbers, batch in read(documents, "document"):
            for at, number in enumerate(numbers):
                vectors = Vectors(batch.tokens[at : at + 1], batch.mask[at : at + 1])
                if not bool(vectors.mask.any()):
                    continue
                for start in range(0, len(read_rows), _QUERIES_AT_ONCE):
                    some = read_rows[start : start + _QUERIES_AT_ONCE]
                    values = retriever.similarity(padded([rows[i] for i in some]), vectors)
                    scores[some, number] = values.float().cpu()
        return scores

    return score
