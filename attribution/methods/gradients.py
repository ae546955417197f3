"""What the methods share that need one gradient of the score at each side's word embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from poslens.attribution.methods.base import Clock, build_batch
from poslens.attribution.methods.passes import (
    Read,
    Rounds,
    encode_once,
    one_round,
    texts_of,
)
from poslens.attribution.retrievers.base import Embedded, compare, reads_jointly, separate
from poslens.attribution.retrievers.encoded import Encoded
from poslens.attribution.types import Attribution, Method, TextPair

if TYPE_CHECKING:
    from captum.attr import GradientAttribution

Score = Callable[..., Tensor]
"""Leaves, word embeddings [R, T, H] first, to scores: their rows do not mix."""

Explain = Callable[[Score, Tensor], Tensor]
"""A score and the embeddings [R, T, H] that it is explained at, to a number for each token [R, T].
"""


def attribute_both_sides(
    retriever: Embedded, method: Method, pairs: Sequence[TextPair], explain: Explain
) -> list[Attribution]:
    """Results of a batch of pairs: the document's numbers with the query constant, then the other
    way round. They do not depend on what else is in the batch.

    Raises:
        UserError: a text without tokens; a score or gradient that is not finite.
        torch.OutOfMemoryError: the batch does not fit.
    """
    clock = Clock()
    with retriever.lock:
        if reads_jointly(retriever):
            queries, documents = retriever.encode_pairs(pairs)
            both = read_once(retriever, documents, one_round(len(pairs)))
            of_documents, scores = explain_side(retriever, both, None, explain)
            of_queries = of_documents
        else:
            apart = separate(retriever)
            query, document = (
                read_once(retriever, *encode_once(apart, texts, side))
                for side, texts in texts_of(pairs)
            )
            of_documents, scores = explain_side(retriever, document, query, explain)
            document = document.detached()  # a batch's longest texts: their graph is the large one
            of_queries, _ = explain_side(retriever, query, document, explain)
            queries, documents = query.of_pairs(), document.of_pairs()
    return build_batch(
        retriever,
        method,
        pairs,
        clock,
        scores=scores,
        queries=queries,
        documents=documents,
        query_scores=of_queries,
        document_scores=of_documents,
    )


def read_once(retriever: Embedded, encoded: Encoded, rounds: Rounds) -> Read:
    """The forward pass of one side's texts, with its graph, from their word embeddings."""
    inputs = retriever.input_embeddings(encoded).requires_grad_()
    with torch.enable_grad(), retriever.override_embeddings(inputs):
        vectors = retriever.embed(encoded)
    return Read(encoded, rounds, (inputs,), vectors)


def explain_side(
    retriever: Embedded, own: Read, other: Read | None, explain: Explain
) -> tuple[Tensor, Tensor]:
    """Numbers [P, T] and scores [P] of the pairs of one side's texts with the `other` side
    constant, None where both are read together; in float32, on the CPU."""

    def of_round(pairs: Sequence[int], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        constant = None if other is None else other.constant(pairs)
        scores = compare(retriever, own.vectors[rows], constant, own.encoded.side)
        # The forward pass is made already: Captum's is the comparison that is left of it.
        numbers = explain(lambda *_: scores, own.leaves[0]).detach()
        return numbers[rows].float(), scores.detach().float()

    numbers, scores = own.rounds.gather(of_round)
    return numbers.cpu(), scores.cpu()


def times_gradient(score: Score, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Captum's InputXGradient: each of `inputs` [R, ...] times the gradient of the score at it."""
    from captum.attr import InputXGradient  # here: slow to import

    method = keeping_graph(InputXGradient(score))
    return tuple(product.detach() for product in method.attribute(inputs))


def keeping_graph(method: GradientAttribution) -> Any:
    """Captum's method with gradients that leave the forward pass to the pairs that come next."""

    def gradients(
        score: Score, inputs: tuple[Tensor, ...], _target: Any = None, _arguments: Any = None
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return torch.autograd.grad(score(*inputs).sum(), inputs, retain_graph=True)

    method.gradient_func = gradients
    return method
