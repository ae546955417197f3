"""What the methods that vary a text's embeddings share: one side varies, the other is constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from attribution.batching import checkpoint
from attribution.retrievers.base import (
    Representation,
    Retriever,
    compare,
    constant_side,
    embedded,
    encode,
)
from attribution.retrievers.encoded import Encoded
from attribution.types import Side, TextPair

BATCH_TOKENS = 8192
"""Tokens of perturbed copies that run together on a CPU; a GPU takes eight times as many."""


@dataclass(frozen=True, slots=True)
class Perturbed:
    """One text of a pair as word embeddings [1, T, H], and its score as a function of them.

    `embed` takes [N, T, H] and gives what the model makes of the N copies, `compare` takes that and
    returns their scores [N], and `score` does both; `baseline` has the padding token's embedding in
    place of every token of the text; `batch` copies run together.
    """

    encoded: Encoded
    inputs: Tensor
    baseline: Tensor
    embed: Callable[[Tensor], Representation]
    compare: Callable[[Representation], Tensor]
    score: Callable[[Tensor], Tensor]
    batch: int


def perturbed(
    loaded: Retriever, pair: TextPair, side: Side, made: list[Representation] | None = None
) -> Perturbed:
    """`pair`'s query or document to be perturbed, the other one held constant; hold the lock.

    `made` takes what the model makes of each call's copies, for another pair with this very text:
    its calls, which have to be the same ones, find it there.
    """
    retriever = embedded(loaded)
    query, document = encode(retriever, [pair])
    encoded, other = (query, document) if side == "query" else (document, query)
    constant = constant_side(retriever, other)
    again = iter(tuple(made or ()))

    def embed(inputs: Tensor) -> Representation:
        checkpoint()
        copies = encoded.repeated(len(inputs))
        with retriever.override_embeddings(inputs):
            return retriever.embed(copies)

    def scores(vectors: Representation) -> Tensor:
        return compare(retriever, vectors, constant, side)

    def score(inputs: Tensor) -> Tensor:
        vectors = next(again, None)
        if vectors is None:
            vectors = embed(inputs)
            if made is not None:
                made.append(vectors)
        return scores(vectors)

    tokens = BATCH_TOKENS * (1 if retriever.device.type == "cpu" else 8)
    inputs = retriever.input_embeddings(encoded)
    return Perturbed(
        encoded,
        inputs,
        retriever.baseline(encoded),
        embed,
        scores,
        score,
        max(1, tokens // inputs.shape[1]),
    )
