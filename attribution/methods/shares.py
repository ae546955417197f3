"""Shares of a text's tokens in the inner product of its linearised embedding with the other side's
vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.methods.gradients import times_gradient
from poslens.attribution.methods.linearised import dependent, linearised
from poslens.attribution.methods.passes import Read, Rounds, one_round
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.encoded import Encoded
from poslens.attribution.types import Side

BIASES = ("explicit", "decompx", "absdot")
"""Where constants go: all into the bias share; the first layer's value bias to its own token, as in
DecompX's code; or all of them to the tokens by |<bias, vector>|, as in DecompX's reference
configuration."""

_FIRST_VALUE = "encoder.layer.0.attention.self.value"


@dataclass(frozen=True, slots=True)
class Shares:
    """One side's shares of the score, with the other side's vector constant.

    `tokens` [B, T], `bias` [B], `scores` [B], all float32 or wider on the CPU; `directions` [B, H]
    is this side's pooled vector, scaled so that the score is an inner product.
    """

    tokens: Tensor
    bias: Tensor
    scores: Tensor
    directions: Tensor

    @property
    def error(self) -> Tensor:
        """score - sum of shares - bias share [B]: rounding, if the linearisation is complete."""
        return self.scores - self.tokens.sum(-1) - self.bias


def shares(
    retriever: DenseRetriever, encoded: Encoded, other: Tensor, biases: str = BIASES[0]
) -> Shares:
    """Shares of one side's tokens in the inner product with `other` [B, H]: input
    times gradient on the linearised encoder, with the constants as further inputs of ones."""
    return shares_of(read_linear(retriever, encoded, one_round(len(other)), biases), other)


def read_linear(
    retriever: DenseRetriever,
    encoded: Encoded,
    rounds: Rounds,
    biases: str,
    gamma: float = 0.0,
) -> Read:
    """The linearised forward pass of one side's texts. Its leaves are the tokens [R, T, H], ones
    [R] for the constants and, with `biases=decompx`, ones [R, T] for the first layer's value bias
    at each token. Its vectors are scaled so that the score is an inner product."""
    leaves = _leaves(retriever, encoded, biases)
    directions = _linear_directions(retriever, encoded, gamma, *leaves)
    return Read(encoded, rounds, leaves, directions)


def shares_of(own: Read, other: Tensor) -> Shares:
    """Shares of the P pairs' texts of one side, with the other side's vectors [P, H]."""

    def of_round(pairs: Sequence[int], rows: Sequence[int]) -> tuple[Tensor, ...]:
        directions = own.vectors[rows]
        scores = (directions * other[list(pairs)]).sum(-1)
        products, bias, *credited = times_gradient(scores, own.leaves)
        wide = torch.float64 if products.dtype == torch.float64 else torch.float32
        tokens = sum(credited, products.sum(-1, dtype=wide))
        return tokens[rows], bias[rows].to(wide), scores.detach().to(wide), directions.detach()

    tokens, bias, scores, directions = own.rounds.gather(of_round)
    return Shares(tokens.cpu(), bias.cpu(), scores.cpu(), directions)


def _leaves(retriever: DenseRetriever, encoded: Encoded, biases: str) -> tuple[Tensor, ...]:
    """The inputs of the affine map: the tokens [B, T, H], ones [B] for the constants and, with
    `biases=decompx`, ones [B, T] for the first layer's value bias at each token."""
    inputs = retriever.entering(encoded, retriever.entry_of(encoded.side))
    values = inputs.new_ones(inputs.shape[:2])
    scales = (values[:, 0].clone(), values) if biases == "decompx" else (values[:, 0].clone(),)
    return tuple(leaf.requires_grad_() for leaf in (inputs, *scales))


def _linear_directions(
    retriever: DenseRetriever,
    encoded: Encoded,
    gamma: float,
    inputs: Tensor,
    bias_scale: Tensor,
    value_scale: Tensor | None = None,
) -> Tensor:
    apart = (
        None if value_scale is None else (_first_value_bias(retriever, encoded.side), value_scale)
    )
    with (
        linearised(retriever.backbone_of(encoded.side), bias_scale, apart, gamma),
        retriever.override_embeddings(inputs, retriever.entry_of(encoded.side)),
    ):
        directions = retriever.directions(retriever.embed(encoded))
    return dependent(directions, bias_scale, inputs)


def _first_value_bias(retriever: DenseRetriever, side: Side) -> Tensor:
    try:
        bias = retriever.backbone_of(side).get_submodule(_FIRST_VALUE).bias
    except AttributeError:
        bias = None
    if not isinstance(bias, Tensor):
        raise UserError(
            f"DecompX's treatment of biases is defined for models built like BERT, and "
            f"{retriever.name} is not: choose biases = explicit."
        )
    return bias
