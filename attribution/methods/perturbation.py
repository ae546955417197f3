"""What the methods that vary a text's embeddings share: one side varies, the other is constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from attribution.batching import checkpoint
from attribution.retrievers.base import (
    Embedded,
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
class Varied:
    """One text as word embeddings [1, T, H] that vary.

    `baseline` has the padding token's embedding in place of every token of the text; `embed` takes
    [N, T, H] and gives what the model makes of N copies; `batch` copies run together.
    """

    encoded: Encoded
    inputs: Tensor
    baseline: Tensor
    embed: Callable[[Tensor], Representation]
    batch: int


@dataclass(frozen=True, slots=True)
class Perturbed(Varied):
    """A text of a pair, the other one constant. `compare` takes what `embed` gives and returns
    scores [N]; `score` does both."""

    compare: Callable[[Representation], Tensor]
    score: Callable[[Tensor], Tensor]


def varied(retriever: Embedded, encoded: Encoded) -> Varied:
    """The text of `encoded`, a batch of one, to be varied; hold the lock."""

    def embed(inputs: Tensor) -> Representation:
        checkpoint()
        copies = encoded.repeated(len(inputs))
        with retriever.override_embeddings(inputs):
            return retriever.embed(copies)

    tokens = BATCH_TOKENS * (1 if retriever.device.type == "cpu" else 8)
    inputs = retriever.input_embeddings(encoded)
    batch = max(1, tokens // inputs.shape[1])
    return Varied(encoded, inputs, retriever.baseline(encoded), embed, batch)


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
    text = varied(retriever, encoded)
    again = iter(tuple(made or ()))

    def scores(vectors: Representation) -> Tensor:
        return compare(retriever, vectors, constant, side)

    def score(inputs: Tensor) -> Tensor:
        vectors = next(again, None)
        if vectors is None:
            vectors = text.embed(inputs)
            if made is not None:
                made.append(vectors)
        return scores(vectors)

    return Perturbed(
        text.encoded, text.inputs, text.baseline, text.embed, text.batch, scores, score
    )
