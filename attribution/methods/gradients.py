"""Shared code of methods that need the score's gradient with respect to word embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from poslens.attribution.methods.base import build_batch
from poslens.attribution.methods.passes import Read, Rounds, encode_once, one_round, texts_of
from poslens.attribution.retrievers.base import Embedded, Encoded, compare, reads_jointly, separate
from poslens.attribution.types import Attribution, Method, TextPair

Explain = Callable[[Tensor, Tensor], Tensor]
"""Maps scores [R] and the embeddings [R, T, H] that explain them to values per token [R, T]; rows
are independent. Other pairs use the graph, too, so it must be retained."""


def attribute_both_sides(
    retriever: Embedded, method: Method, pairs: Sequence[TextPair], explain: Explain
) -> list[Attribution]:
    """Results of a batch of pairs: values of the document with the query constant, then the
    reverse. They do not depend on the rest of the batch.

    Raises:
        UserError: a text without tokens; a score or gradient that is not finite.
        torch.OutOfMemoryError: the batch does not fit.
    """
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
            document = document.detached()  # documents are the longest texts: frees the large graph
            of_queries, _ = explain_side(retriever, query, document, explain)
            queries, documents = query.of_pairs(), document.of_pairs()
    return build_batch(
        retriever,
        method,
        pairs,
        scores=scores,
        queries=queries,
        documents=documents,
        query_scores=of_queries,
        document_scores=of_documents,
    )


def read_once(retriever: Embedded, encoded: Encoded, rounds: Rounds) -> Read:
    """The forward pass of one side's texts from their word embeddings, with its graph."""
    inputs = retriever.input_embeddings(encoded).requires_grad_()
    with torch.enable_grad(), retriever.override_embeddings(inputs):
        vectors = retriever.embed(encoded)
    return Read(encoded, rounds, (inputs,), vectors)


def explain_side(
    retriever: Embedded, own: Read, other: Read | None, explain: Explain
) -> tuple[Tensor, Tensor]:
    """Values [P, T] and scores [P] of the pairs for one side's texts, on the CPU in float32. The
    `other` side is constant, or None if both are read together."""

    def of_round(pairs: Sequence[int], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        constant = None if other is None else other.constant(pairs)
        scores = compare(retriever, own.vectors[rows], constant, own.encoded.side)
        numbers = explain(scores, own.leaves[0]).detach()
        return numbers[rows].float(), scores.detach().float()

    numbers, scores = own.rounds.gather(of_round)
    return numbers.cpu(), scores.cpu()


def times_gradient(scores: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each of `inputs` [R, ...] times its gradient of `scores` [R]. Keeps the graph for the
    next pairs."""
    gradients = torch.autograd.grad(scores.sum(), inputs, retain_graph=True)
    return tuple(
        value.detach() * gradient for value, gradient in zip(inputs, gradients, strict=True)
    )
