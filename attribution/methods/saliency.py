"""Gradient saliency (Simonyan et al. 2014), as in section 5.3 of the PosIR paper, through Captum's
`Saliency` with a gradient function that reuses a forward pass.

saliency_j = ||d s / d e_j||_2 with e_j the word embedding of token j, before position embeddings
are added, and the other side constant. In units of the score per unit of embedding. Unsigned, and
not a share of the score: it shows which tokens the score is sensitive to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from poslens.attribution.methods.base import MethodEntry, register
from poslens.attribution.methods.gradients import attribute_both_sides
from poslens.attribution.retrievers.family import Capability


def gradient_norms(scores: Tensor, inputs: Tensor) -> Tensor:
    """||d s / d e_j||_2 of each token [R, T]."""
    from captum.attr import Saliency  # here: slow to import

    def keeping_graph(_: Any, inputs: tuple[Tensor, ...], *_rest: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(scores.sum(), inputs, retain_graph=True)

    method: Any = Saliency(None)  # the forward pass is already done
    method.gradient_func = keeping_graph
    gradients: Tensor = method.attribute(inputs, abs=False)
    norms: Tensor = torch.linalg.vector_norm(gradients.float(), dim=-1)
    return norms


attribute = partial(attribute_both_sides, explain=gradient_norms)
"""Saliency of every document token and every query token of a batch of pairs."""


register(
    MethodEntry(
        name="saliency",
        title="Gradient saliency",
        help="Norm of the score's gradient with respect to each token embedding: how sensitive the "
        "score is to each token.",
        axis="Saliency",
        unit="‖∂s/∂e‖₂",
        signed=False,
        additive=False,
        needs=Capability.GRADIENTS,
        compute=attribute,
        order=0,
        citation="Simonyan, Vedaldi and Zisserman 2014, arXiv 1312.6034",
        uses_gradients=True,
        aggregate="mean",
    )
)
