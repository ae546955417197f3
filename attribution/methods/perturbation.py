"""Shared code of methods that perturb a text's embeddings while the other text is constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from poslens.attribution.batching import Halving, R, T
from poslens.attribution.checkpoints import checkpoint
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
    """The model's outputs for the first of a text's copies, in parts, as far as they fit into
    `room` (bytes): without a limit, token vectors of all copies of a long text could fill a
    device."""

    outputs: list[Representation] = field(default_factory=list)
    room: int = KEPT_BYTES

    def add(self, representation: Representation) -> None:
        """Store the output for the next copies. After the first one that does not fit, nothing more
        is stored."""
        self.room -= size(representation)
        if self.room >= 0:
            self.outputs.append(representation)


_of_copies: WeakKeyDictionary[Embedded, Halving] = WeakKeyDictionary()
"""By model, so that the copies of the next text start with the number that fitted."""


class Varied:
    """The text of `encoded`, a batch of one, as word embeddings `inputs` [1, T, H] to perturb; hold
    the lock. `baseline` has the padding token's embedding in place of every text token. At most
    `batch` copies run together, fewer if they exceed the device's memory."""

    def __init__(self, retriever: Embedded, encoded: Encoded) -> None:
        self.retriever, self.encoded = retriever, encoded
        self.inputs = retriever.input_embeddings(encoded)
        self.baseline = retriever.baseline(encoded)
        tokens = BATCH_TOKENS * (1 if retriever.device.type == "cpu" else 8)
        self.batch = max(1, tokens // self.inputs.shape[1])
        self._halving = _of_copies.setdefault(retriever, Halving())

    def embed(self, inputs: Tensor) -> Representation:
        """The model's output for N copies of the text with `inputs` [N, T, H]."""
        checkpoint()
        copies = self.encoded.repeated(len(inputs))
        with self.retriever.override_embeddings(inputs):
            return self.retriever.embed(copies)

    def in_parts(
        self,
        run: Callable[[list[T]], R],
        copies: Sequence[T],
        report: Callable[[float], object] = lambda share: None,
    ) -> Iterator[R]:
        """What `run` returns for as many of `copies` as run together, part by part, in order. A
        part that exceeds memory is halved and run again. Before each, `report` is called with the
        share of the copies that are finished.

        Raises:
            UserError: a single copy does not fit into memory.
        """
        done = 0

        def next_part(part: list[T]) -> list[R]:
            nonlocal done
            report(done / len(copies))
            result = run(part)
            done += len(part)
            return [result]

        for start in range(0, len(copies), self.batch):
            part = list(copies[start : start + self.batch])
            yield from self._halving(next_part, part, self.batch)


class Perturbed(Varied):
    """`pair`'s query or document to perturb, with the other text constant; hold the lock.

    `state` stores outputs of `scores` for another pair with the same text, which must have the same
    copies scored.
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

    def compare(self, vectors: Representation) -> Tensor:
        """Scores [N] of an output of `embed`."""
        return compare(self.retriever, vectors, self._constant, self._side)

    def scores(
        self, padded: Sequence[Tensor], report: Callable[[float], object] = lambda share: None
    ) -> Tensor:
        """Scores [N], on the CPU, of a copy of the text for each mask [T], with padding where it is
        true; `report` as for `in_parts`.

        Raises:
            UserError: a single copy does not fit into memory.
        """
        state = self._state or Kept(room=0)
        parts = [self.compare(vectors).detach().cpu() for vectors in state.outputs]

        def score(part: list[Tensor]) -> Tensor:
            masks = torch.stack(part).to(self.inputs.device)
            vectors = self.embed(torch.where(masks[..., None], self.baseline, self.inputs))
            scores = self.compare(vectors).detach().cpu()
            state.add(vectors)  # last: an attempt that runs out of memory adds nothing
            return scores

        n_stored = sum(map(len, parts))
        parts += self.in_parts(score, padded[n_stored:], report)
        return torch.cat(parts)
