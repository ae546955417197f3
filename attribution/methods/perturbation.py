"""Shared code of methods that perturb a text's embeddings while the other text is constant."""

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
"""Tokens of perturbed copies in one batch on a CPU; a GPU takes eight times as many."""


KEPT_BYTES = 2**28
"""Memory limit for outputs of a text's copies that other pairs can reuse."""


@dataclass(slots=True)
class Kept:
    """The model's outputs for a text's copies, call by call, as far as they fit into `room`
    (bytes): without a limit, token vectors of all copies of a long text could fill a device."""

    outputs: list[Representation] = field(default_factory=list)
    room: int = KEPT_BYTES

    def add(self, representation: Representation) -> None:
        """Store the output of the next call. After the first one that does not fit, nothing more is
        stored, because outputs are looked up by index."""
        self.room -= size(representation)
        if self.room >= 0:
            self.outputs.append(representation)


@dataclass(frozen=True, slots=True)
class Varied:
    """One text as word embeddings [1, T, H] to perturb.

    `baseline` has the padding token's embedding in place of every text token. `embed` takes
    [N, T, H] and returns the model's output for N copies; `batch` copies run together.
    """

    encoded: Encoded
    inputs: Tensor
    baseline: Tensor
    embed: Callable[[Tensor], Representation]
    batch: int


@dataclass(frozen=True, slots=True)
class Perturbed(Varied):
    """One text of a pair, with the other constant. `compare` takes the output of `embed` and
    returns scores [N]; `score` does both."""

    compare: Callable[[Representation], Tensor]
    score: Callable[[Tensor], Tensor]


def varied(retriever: Embedded, encoded: Encoded) -> Varied:
    """The text of `encoded`, a batch of one, to perturb; hold the lock."""

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
    """`pair`'s query or document to perturb, with the other text constant; hold the lock.

    `state` stores the outputs of each call for another pair with the same text, which must make
    the same calls.
    """
    retriever = embedded(loaded)
    query, document = encode(retriever, [pair])
    encoded, other = (query, document) if side == "query" else (document, query)
    constant = constant_side(retriever, other)
    text = varied(retriever, encoded)
    again = iter(tuple(state.outputs if state else ()))

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
