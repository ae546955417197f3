"""What the methods share that need one gradient of the score at each side's word embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from attribution.methods.base import Clock, build_batch
from attribution.retrievers.base import Embedded, Representation, compare, constant_side, encode
from attribution.retrievers.encoded import Encoded
from attribution.types import Attribution, Method, Side, TextPair

Score = Callable[[Tensor], Tensor]
"""Word embeddings [B, T, H] to scores [B]."""

Explain = Callable[[Score, Tensor], Tensor]
"""A score and the embeddings [B, T, H] that it is explained at, to a number for each token [B, T].
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
        queries, documents = encode(retriever, pairs)
        query_vectors = constant_side(retriever, queries)
        of_documents, document_vectors, scores = explain_side(
            retriever, documents, query_vectors, "document", explain
        )
        of_queries, _, _ = explain_side(retriever, queries, document_vectors, "query", explain)
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


def explain_side(
    retriever: Embedded, encoded: Encoded, other: Representation, side: Side, explain: Explain
) -> tuple[Tensor, Representation, Tensor]:
    """One side's numbers [B, T], with the other side as `constant_side` gives it.

    Returns the numbers, what `embed` makes of this side (detached; pooled vectors [B, H] of a dense
    retriever) and the scores [B]; numbers and scores in float32, on the CPU.
    """
    seen: dict[str, Representation] = {}

    def score(inputs: Tensor) -> Tensor:
        with retriever.override_embeddings(inputs):
            vectors = retriever.embed(encoded)
        scores = compare(retriever, vectors, other, side)
        seen["vectors"], seen["scores"] = vectors.detach(), scores.detach()
        return scores

    inputs = retriever.input_embeddings(encoded).requires_grad_()
    numbers = explain(score, inputs).detach()
    return numbers.float().cpu(), seen["vectors"], seen["scores"].float().cpu()


def times_gradient(score: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Captum's InputXGradient: each of `inputs` [B, ...] times the gradient of the score at it."""
    from captum.attr import InputXGradient  # here: slow to import

    return tuple(product.detach() for product in InputXGradient(score).attribute(inputs))
