"""Integrated gradients (Sundararajan et al. 2017), through Captum: signed, in units of the score,
summed over the dimensions of the word embedding before position embeddings are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.methods.base import MethodEntry, MethodParameter, register
from poslens.attribution.methods.passes import distinct
from poslens.attribution.methods.perturbation import Varied
from poslens.attribution.retrievers.base import (
    Embedded,
    Encoded,
    Representation,
    compare,
    reads_jointly,
    separate,
)
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.types import Attribution, Method, Side, TextPair

STEPS = (16, 32, 64, 128, 256, 512)
"""Numbers of steps that `auto` tries until the delta is small."""

DELTA = 1e-3
"""The delta, relative to the score, at which `auto` stops."""


def attribute(retriever: Embedded, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """The gradient averaged along the straight line from padding-token embeddings (special tokens
    stay) to the text's embeddings, times their difference.

    Shares sum to the score minus the baseline's score. The baseline's score is the bias share;
    Captum's convergence delta with the opposite sign is the completeness error. `steps=auto`
    doubles the steps up to 512 until the error is at most 0.001 of the score. Pairs that share a
    text share the forward passes along its path.
    """
    steps = str(method.params["steps"])
    with retriever.lock:
        queries, documents = (_texts(retriever, pairs, side) for side in ("query", "document"))
        of_documents = _along(retriever, documents, queries, "document", steps)
        of_queries = _along(retriever, queries, documents, "query", steps)
    return [
        Attribution(
            model=retriever.name,
            method=method,
            pair_id=pair.pair_id,
            score=of_document.score,
            query=query.encoded.texts[0],
            document=document.encoded.texts[0],
            query_scores=query.encoded.row(of_query.shares, 0).numpy(),
            document_scores=document.encoded.row(of_document.shares, 0).numpy(),
            bias_share=of_document.baseline,
            completeness_error=of_document.error,
        )
        for pair, query, document, of_query, of_document in zip(
            pairs, queries, documents, of_queries, of_documents, strict=True
        )
    ]


class _Text(Varied):
    """One side's text at the end of its path, and the model's output at both ends."""

    def __init__(self, retriever: Embedded, encoded: Encoded) -> None:
        super().__init__(retriever, encoded)
        with torch.no_grad():
            self.whole, self.empty = self.embed(self.inputs), self.embed(self.baseline)


@dataclass(frozen=True, slots=True)
class _SideShares:
    """A pair's shares [1, T] of one side's tokens, on the CPU, and their sum."""

    shares: Tensor
    score: float
    baseline: float

    @property
    def error(self) -> float:
        return self.score - self.baseline - float(self.shares.sum(dtype=torch.float64))


def _texts(retriever: Embedded, pairs: Sequence[TextPair], side: Side) -> list[_Text]:
    """The text of each pair. Pairs that share a text share the object, unless it is read together
    with the other side."""
    if reads_jointly(retriever):
        both = [retriever.encode_pairs([pair]) for pair in pairs]
        sides = [query if side == "query" else document for query, document in both]
        return [_Text(retriever, encoded) for encoded in sides]
    unique, places = distinct([getattr(pair, side) for pair in pairs])
    apart = separate(retriever)
    texts = [_Text(retriever, apart.encode_texts([text], side)) for text in unique]
    return [texts[place] for place in places]


def _along(
    retriever: Embedded, own: list[_Text], others: list[_Text], side: Side, steps: str
) -> list[_SideShares]:
    """Each pair's shares of its `own` text, with the vector of the other text constant."""
    pairs_of: dict[_Text, list[int]] = {}
    for pair, text in enumerate(own):
        pairs_of.setdefault(text, []).append(pair)
    shares_of: dict[int, _SideShares] = {}
    for text, left in pairs_of.items():
        for n_steps in STEPS if steps == "auto" else (int(steps),):
            constants = [others[pair].whole for pair in left]
            integrated = _integrated(retriever, text, constants, side, n_steps)
            shares_of |= zip(left, integrated, strict=True)
            left = [p for p in left if abs(shares_of[p].error) > DELTA * abs(shares_of[p].score)]
            if not left:
                break
    return [shares_of[pair] for pair in range(len(own))]


def steps_in_words(side: Side, n_steps: int) -> str:
    """An attempt to integrate along the path of one side's text, in words."""
    return f"{side.capitalize()}, {n_steps:,} steps"


def _integrated(
    retriever: Embedded, text: _Text, constants: list[Representation], side: Side, n_steps: int
) -> list[_SideShares]:
    """Shares of P pairs for this number of steps; the other sides' vectors are in `constants`."""
    from captum.attr import IntegratedGradients  # here: slow to import

    n_pairs, done = len(constants), 0
    delta = text.inputs - text.baseline

    def gradients_at(points: list[Tensor]) -> Tensor:
        """Gradients [S, P, T] of the pairs' scores at S points [T]."""
        nonlocal done
        at = torch.stack(points).to(delta.device)[..., None]
        inputs = (text.baseline + at * delta).to(delta.dtype).requires_grad_()
        each: list[Tensor] = []
        with torch.enable_grad():
            representation = text.embed(inputs)
            for number, constant in enumerate(constants):
                share = (done + len(points) * number / n_pairs) / n_steps
                checkpoint(share, steps_in_words(side, n_steps))
                scores = compare(retriever, representation, constant, side)
                (gradient,) = torch.autograd.grad(scores.sum(), inputs, retain_graph=True)
                each.append((gradient * delta).sum(-1, dtype=torch.float32))
        gradients = torch.stack(each, 1).cpu()
        done += len(points)  # last: an attempt that runs out of memory finishes no points
        return gradients

    def gradients(inputs: tuple[Tensor, ...], **_: object) -> tuple[Tensor, ...]:
        # Captum makes P copies of each point of the path: one forward pass serves all of them.
        points = inputs[0].detach()[::n_pairs]
        return (torch.cat([*text.in_parts(gradients_at, list(points))]).flatten(0, 1),)

    # A point of the path is given by each token's position between padding, 0, and the text, 1: the
    # gradients are then one number per token, so those of all points take little memory.
    method: Any = IntegratedGradients(None, multiply_by_inputs=True)
    method.gradient_func = gradients
    shares = method.attribute(
        torch.ones(n_pairs, delta.shape[1]),
        baselines=0.0,
        n_steps=n_steps,
        internal_batch_size=max(n_pairs, text.batch),
    ).detach()
    with torch.no_grad():
        return [
            _SideShares(
                shares[number : number + 1],
                *(
                    float(compare(retriever, end, constant, side))
                    for end in (text.whole, text.empty)
                ),
            )
            for number, constant in enumerate(constants)
        ]


register(
    MethodEntry(
        name="integrated_gradients",
        title="Integrated gradients",
        help="Embedding minus padding, times the gradient averaged along the straight path between "
        "them: signed shares of the difference between the text's score and that of the padding. "
        "Slow.",
        axis="Integrated gradients",
        unit="share of the score",
        signed=True,
        additive=True,
        needs=Capability.GRADIENTS,
        compute=attribute,
        order=3,
        citation="Sundararajan, Taly and Yan 2017, arXiv 1703.01365",
        uses_gradients=True,
        slow=True,
        one_document=True,
        parameters=(
            MethodParameter(
                "steps",
                ("auto", *map(str, STEPS)),
                "Points on the path. auto doubles them until the shares plus the bias share equal "
                "the score within 0.1%.",
            ),
        ),
    )
)
