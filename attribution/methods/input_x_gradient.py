"""Input × gradient: signed, in units of the score, summed over the dimensions of the word
embedding before position embeddings are added."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from poslens.attribution.methods.base import MethodEntry, register
from poslens.attribution.methods.gradients import attribute_both_sides, times_gradient
from poslens.attribution.retrievers.family import Capability


def _products(scores: Tensor, inputs: Tensor) -> Tensor:
    """Sums over H of input times gradient [B, T]."""
    (products,) = times_gradient(scores, (inputs,))
    return products.sum(-1, dtype=torch.float32)


attribute = partial(attribute_both_sides, explain=_products)
"""<e_j, d s / d e_j> of every token of both sides. Values do not sum to the score."""


register(
    MethodEntry(
        name="input_x_gradient",
        title="Input × gradient",
        help="Dot product of a token embedding and its gradient: a signed, first-order estimate "
        "of the token's effect. Values do not sum to the score.",
        axis="Input × gradient",
        unit="score",
        signed=True,
        additive=False,
        needs=Capability.GRADIENTS,
        compute=attribute,
        order=2,
        citation="Shrikumar, Greenside and Kundaje 2017, arXiv 1605.01713",
        uses_gradients=True,
    )
)
