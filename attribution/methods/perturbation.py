"""What the methods that vary a text's embeddings share: one side varies, the other is constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from poslens.attribution.batching import checkpoint
from poslens.attribution.retrievers.base import (
    Embedded,
    Representation,
    Retriever,
    compare,
    constant_side,
    embedded,
    encode,
)
from poslens.attribution.retrievers.encoded import Encoded
from poslens.attribution.retrievers.scoring import size
from poslens.attribution.types import Side, TextPair

BATCH_TOKENS = 8192
"""Tokens of perturbed copies that run together on a CPU; a GPU takes eight times as many."""


KEPT_BYTES = 2**28
"""How much of what a model made of a text's copies is kept for other pairs with that text."""


@dataclass(slots=True)
class Kept:
    """What the model made of a text's copies, call by call from the first one, as far as there is
    `room` (bytes): vectors of all tokens of all copies of a long text fill no device."""

    made: list[Representation] = field(default_factory=list)
    room: int = KEPT_BYTES

    def add(self, made: Representation) -> None:
        """Keep what the next call gave. The first that finds no room is the last one tried: what
        is kept is found again by its place."""
        self.room -= size(made)
        if self.room >= 0:
            self.made.append(made)


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
    loaded: Retriever, pair: TextPair, side: Side, state: Kept | None = None
) -> Perturbed:
    """`pair`'s query or document to be perturbed, the other one held constant; hold the lock.

    `state` takes what the model makes of each call's copies, for another pair with this very text:
    its calls, which have to be the same ones, find it there.
    """
    retriever = embedded(loaded)
    query, document = encode(retriever, [pair])
    encoded, other = (query, document) if side == "query" else (document, query)
    constant = constant_side(retriever, other)
    text = varied(retriever, encoded)
    again = iter(tuple(state.made if state else ()))

    def scores(vectors: Representation) -> Tensor:
        return compare(retriever, vectors, constant, side)

    def score(inputs: Tensor) -> Tensor:
        vectors = next(again, None)
        if vectors is None:
            vectors = text.embed(inputs)
            if state is not None:
                state.add(vectors)
        return scores(vectors)

    return Perturbed(
        text.encoded, text.inputs, text.baseline, text.embed, text.batch, scores, score
    )
