"""Shared code of methods that perturb a text's embeddings while the other text is constant."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from poslens.attribution.batching import checkpoint
from poslens.attribution.retrievers.base import (
    Embedded,
    Encoded,
    Representation,
    Retriever,
    compare,
    constant_side,
    embedded,
    encode,
)
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


class Varied:
    """The text of `encoded`, a batch of one, as word embeddings `inputs` [1, T, H] to perturb; hold
    the lock. `baseline` has the padding token's embedding in place of every text token. At most
    `batch` copies run together."""

    def __init__(self, retriever: Embedded, encoded: Encoded) -> None:
        self.retriever, self.encoded = retriever, encoded
        self.inputs = retriever.input_embeddings(encoded)
        self.baseline = retriever.baseline(encoded)
        tokens = BATCH_TOKENS * (1 if retriever.device.type == "cpu" else 8)
        self.batch = max(1, tokens // self.inputs.shape[1])

    def embed(self, inputs: Tensor) -> Representation:
        """The model's output for N copies of the text with `inputs` [N, T, H]."""
        checkpoint()
        copies = self.encoded.repeated(len(inputs))
        with self.retriever.override_embeddings(inputs):
            return self.retriever.embed(copies)


class Perturbed(Varied):
    """`pair`'s query or document to perturb, with the other text constant; hold the lock.

    `state` stores the outputs of each call of `score` for another pair with the same text, which
    must make the same calls.
    """

    def __init__(
        self, loaded: Retriever, pair: TextPair, side: Side, state: Kept | None = None
    ) -> None:
        retriever = embedded(loaded)
        query, document = encode(retriever, [pair])
        encoded, other = (query, document) if side == "query" else (document, query)
        super().__init__(retriever, encoded)
        self._side, self._state = side, state
        self._constant = constant_side(retriever, other)
        self._again = iter(tuple(state.outputs if state else ()))

    def compare(self, vectors: Representation) -> Tensor:
        """Scores [N] of an output of `embed`."""
        return compare(self.retriever, vectors, self._constant, self._side)

    def score(self, inputs: Tensor) -> Tensor:
        """Scores [N] of N copies of the text with `inputs` [N, T, H]."""
        vectors = next(self._again, None)
        if vectors is None:
            vectors = self.embed(inputs)
            if self._state is not None:
                self._state.add(vectors)
        return self.compare(vectors)
