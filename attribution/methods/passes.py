"""Pairs that share a text share its forward pass: each further pair adds only a backward pass.

The distinct texts of one side of a batch are the rows of one forward pass, whose graph stays in
memory for the backward passes. These run in rounds in which each row serves at most one pair. Rows
are independent, so the gradient of the sum of scores contains each pair's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poslens.attribution.batching import batch_tokens
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.retrievers.base import Encoded, Representation, Separate
from poslens.attribution.types import Side, TextPair


@dataclass(frozen=True, slots=True)
class Rounds:
    """Which row each of P pairs reads, and which pairs' gradients are computed together: no two
    pairs of a round share a row, and each pair is in one round."""

    rows: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]

    def gather(
        self, explain: Callable[[Sequence[int], Sequence[int]], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Values of all pairs [P, ...] from `explain`, which is called for each round with the
        indices of its pairs and their rows and returns [p, ...]."""
        arrays: list[tuple[Tensor, ...]] = []
        for pairs in self.rounds:
            if arrays:
                checkpoint()
            arrays.append(explain(pairs, [self.rows[pair] for pair in pairs]))
        place = torch.tensor([pair for pairs in self.rounds for pair in pairs]).argsort()
        return tuple(
            torch.cat(parts)[place.to(parts[0].device)] for parts in zip(*arrays, strict=True)
        )


def one_round(n: int) -> Rounds:
    """Rounds in which each of n pairs has its own row."""
    return Rounds(tuple(range(n)), (tuple(range(n)),))


@dataclass(frozen=True, slots=True)
class Read:
    """Texts of one side after their forward pass. Gradients are computed with respect to `leaves`,
    the first of shape [R, T, H]; `vectors` are compared with the other side and carry the
    graph."""

    encoded: Encoded
    rounds: Rounds
    leaves: tuple[Tensor, ...]
    vectors: Representation

    def detached(self) -> Read:
        """The same without the graph, which frees its memory."""
        return replace(self, leaves=(), vectors=self.vectors.detach())

    def constant(self, pairs: Sequence[int]) -> Representation:
        """The vectors of these pairs' texts, without a gradient."""
        return self.vectors[[self.rounds.rows[pair] for pair in pairs]].detach()

    def of_pairs(self) -> Encoded:
        """The text of each pair."""
        return self.encoded.picked(self.rounds.rows)


def texts_of(pairs: Sequence[TextPair]) -> tuple[tuple[Side, list[str]], tuple[Side, list[str]]]:
    """Both sides and their texts, pair by pair."""
    return (
        ("query", [pair.query for pair in pairs]),
        ("document", [pair.document for pair in pairs]),
    )


def distinct(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """The distinct texts, and the index of each text among them."""
    order = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return list(order), [order[text] for text in texts]


def encode_once(retriever: Separate, texts: Sequence[str], side: Side) -> tuple[Encoded, Rounds]:
    """One side's texts as rows, repeated only where that is cheaper, and the rounds of the pairs.

    Raises:
        UserError: a text has no text tokens.
    """
    unique, places = distinct(texts)
    encoded = retriever.encode_texts(unique, side)
    if len(unique) == len(texts):
        return encoded, one_round(len(texts))
    longest = max(len(text) for text in encoded.texts)
    least = batch_tokens(retriever.device.type) // SHORTEST
    return planned(encoded, places, longest, least)


SHORTEST = 32
"""A pass over less than one in this many of a batch's tokens takes no less time, because starting
the kernels dominates."""


def planned(
    encoded: Encoded, places: Sequence[int], longest: int, least: int
) -> tuple[Encoded, Rounds]:
    """Rows of `encoded` for pairs whose texts have the indices `places`, and their rounds.

    With R rounds, a text of n pairs needs n / R rows (rounded up), and the passes read
    rows x (1 + R). The R with the smallest cost is used, in a tie the smallest R.
    """
    of_text: list[list[int]] = [[] for _ in encoded.texts]
    for pair, place in enumerate(places):
        of_text[place].append(pair)

    def cost(n_rounds: int) -> int:
        rows = sum(-(-len(pairs) // n_rounds) for pairs in of_text)
        return max(rows * longest, least) * (1 + n_rounds)

    n_rounds = min(range(1, 1 + max(map(len, of_text))), key=cost)
    copies: list[int] = []
    rows = [0] * len(places)
    rounds: list[list[int]] = [[] for _ in range(n_rounds)]
    for place, pairs in enumerate(of_text):
        n = -(-len(pairs) // n_rounds)
        for number, pair in enumerate(pairs):
            rows[pair] = len(copies) + number % n
            rounds[number // n].append(pair)
        copies += [place] * n
    return encoded.picked(copies), Rounds(tuple(rows), tuple(map(tuple, rounds)))
