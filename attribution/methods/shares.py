"""Shares of a text's tokens in the inner product of its linearized embedding with the other side's
vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.methods.gradients import times_gradient
from poslens.attribution.methods.linearized import dependent, linearized
from poslens.attribution.methods.passes import Read, Rounds
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.embedding_hooks import EmbeddingHooks
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
        """score - sum of shares - bias share [B]: rounding, if the linearization is complete."""
        return self.scores - self.tokens.sum(-1) - self.bias


def read_linear(
    retriever: EmbeddingHooks,
    encoded: Encoded,
    rounds: Rounds,
    biases: str,
    gamma: float = 0.0,
    module: nn.Module | None = None,
) -> Read:
    """The linearized forward pass of one side's texts from the output of `module`, by default the
    module in which the encoder begins. Its leaves are this output [R, T, H], ones [R] for the
    constants and, with `biases=decompx`, ones [R, T] for the first layer's value bias at each
    token. Its vectors are scaled so that the score is an inner product."""
    side, batch = encoded.side, len(encoded.texts)
    module = retriever.entry_of(side) if module is None else module
    inputs = retriever.entering(encoded, module)
    # Position embeddings are looked up once per batch; each row needs its own.
    inputs = inputs.expand(batch, *inputs.shape[1:]).contiguous().requires_grad_()
    bias_scale = inputs.new_ones(batch).requires_grad_()
    leaves: tuple[Tensor, ...] = (inputs, bias_scale)
    apart = None
    if biases == "decompx":
        value_scale = inputs.new_ones(inputs.shape[:2]).requires_grad_()
        leaves, apart = (*leaves, value_scale), (_first_value_bias(retriever, side), value_scale)
    with (
        linearized(retriever.backbone_of(side), bias_scale, apart, gamma),
        retriever.override_embeddings(inputs, module),
    ):
        directions = retriever.directions(retriever.embed(encoded))
    return Read(encoded, rounds, leaves, dependent(directions, bias_scale, inputs))


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


def _first_value_bias(retriever: EmbeddingHooks, side: Side) -> Tensor:
    try:
        bias = retriever.backbone_of(side).get_submodule(_FIRST_VALUE).bias
    except AttributeError:
        bias = None
    if not isinstance(bias, Tensor):
        raise UserError(
            f"biases = decompx needs a BERT-like model, which {retriever.name} is not: choose "
            "biases = explicit."
        )
    return bias
