"""Query-free profile: how sensitive a text's own vector is to each of its tokens.

profile_j = ||J_j||_F, where J_j = d v / d e_j [H, H] is the Jacobian of the text's vector v
(normalized if the model scores by cosine) with respect to the word embedding e_j. The formula
contains no query, so the profile is the part of gradient saliency that no query can change.

J is never computed. For a cotangent u ~ N(0, I), the mean of ||J_j^T u||^2 is ||J_j||_F^2:
Gaussian probes (Girard 1989); Hutchinson (1990) uses +-1. So each cotangent costs one backward
pass, and all share one forward pass. Captum only differentiates sums of outputs and would need a
forward pass for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import UserError
from poslens.attribution.methods.base import MethodEntry, build_batch, register
from poslens.attribution.methods.passes import distinct
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.base import Encoded, Pooled
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.types import Attribution, Method, TextPair, TokenizedText

FIRST, MOST = 4, 32
"""First and maximum number of cotangents. The number doubles until `TOLERANCE` is met."""

TOLERANCE = 0.05
"""Maximum standard error, averaged over a text's tokens and relative to the mean profile."""

SEED = 20


def attribute(retriever: Pooled, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """The profile of every document, and of every query by itself. Without a query, its side has no
    tokens, and the score is the similarity of the document's vector with itself.

    All texts use the same cotangents, so results do not depend on the rest of the batch.

    Raises:
        UserError: a text without tokens; a number that is not finite.
        torch.OutOfMemoryError: the batch does not fit.
    """
    # A text of several pairs is read once.
    texts, places = distinct([pair.document for pair in pairs])
    with retriever.lock:
        documents = retriever.encode_texts(texts, "document")
        of_documents, errors, vectors = (of[places] for of in profile(retriever, documents))
        documents = documents.picked(places)
        queries, of_queries, query_vectors = _queries(retriever, pairs, vectors)
        scores = retriever.similarity(query_vectors, vectors)
    return build_batch(
        retriever,
        method,
        pairs,
        scores=scores.float().cpu(),
        queries=queries,
        documents=documents,
        query_scores=of_queries,
        document_scores=of_documents,
        standard_errors=errors,
    )


def _queries(
    retriever: Pooled, pairs: Sequence[TextPair], vectors: Tensor
) -> tuple[Encoded, Tensor, Tensor]:
    """The tokens of the queries, their profiles [B, T] and vectors [B, H]. Pairs without a query
    have no tokens and the document's row of `vectors` [B, H]."""
    limit = retriever.max_length_of("query")
    read, offsets = [TokenizedText.of((), 0, limit)] * len(pairs), [0] * len(pairs)
    rows = [b for b, pair in enumerate(pairs) if pair.query]
    if not rows:
        return (
            Encoded({}, tuple(read), tuple(offsets), "query"),
            torch.zeros(len(pairs), 0),
            vectors,
        )
    texts, places = distinct([pairs[b].query for b in rows])
    encoded = retriever.encode_texts(texts, "query")
    array, _, distinct_vectors = profile(retriever, encoded)
    values = torch.zeros(len(pairs), array.shape[1])
    values[rows] = array[places]
    query_vectors = vectors.clone()
    query_vectors[rows] = distinct_vectors[places]
    for b, place in zip(rows, places, strict=True):
        read[b], offsets[b] = encoded.texts[place], encoded.offsets[place]
    return Encoded({}, tuple(read), tuple(offsets), "query"), values, query_vectors


def profile(
    retriever: Pooled, encoded: Encoded, cotangents: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """||J_j||_F of each token of a batch.

    Args:
        cotangents: [K, H] to use regardless of their error, or None for random ones. The H unit
            vectors times sqrt(H) give the exact norm.

    Returns:
        Norms [B, T]; their standard error over cotangents, averaged over a text's tokens and
        relative to the mean norm [B]; the vectors of the texts [B, H]. In float32 on the CPU,
        except the vectors, which are detached and on the model's device.

    Raises:
        UserError: the model's similarity is not an inner product.
    """
    inputs = retriever.input_embeddings(encoded).requires_grad_()
    with torch.enable_grad(), retriever.override_embeddings(inputs):
        embedded = retriever.embed(encoded)
        vectors = retriever.directions(embedded)
    size, width = vectors.shape
    real = torch.zeros(inputs.shape[:2], dtype=torch.bool)  # tokens rather than padding
    for b in range(size):
        real[b, encoded.span(b)] = True
    total = torch.zeros(inputs.shape[:2], dtype=torch.float64)
    squared = torch.zeros_like(total)
    drawn = torch.zeros(size, dtype=torch.float64)
    active = torch.ones(size, dtype=torch.bool)
    generator = torch.Generator().manual_seed(SEED)
    limit = MOST if cotangents is None else len(cotangents)
    doing = f"{encoded.side.capitalize()}, at most {counted(limit, 'random direction')}"
    for number in range(1, limit + 1):
        checkpoint((number - 1) / limit, doing)
        u = (
            torch.randn(width, generator=generator)
            if cotangents is None
            else cotangents[number - 1]
        )
        (gradient,) = torch.autograd.grad(
            vectors,
            inputs,
            grad_outputs=u.to(vectors).expand_as(vectors),
            retain_graph=number < limit,
        )
        squares = gradient.float().pow(2).sum(-1).cpu().double()
        # A text that meets the tolerance keeps its numbers, whatever the rest of the batch needs.
        total += squares * active[:, None]
        squared += squares.pow(2) * active[:, None]
        drawn += active
        if cotangents is None and number >= FIRST and number & (number - 1) == 0:
            active &= _error(total, squared, drawn, real) > TOLERANCE
            if not active.any():
                break
    norms = (total / drawn[:, None]).sqrt().float()
    return norms, _error(total, squared, drawn, real).float(), embedded.detach()


def _error(total: Tensor, squared: Tensor, drawn: Tensor, real: Tensor) -> Tensor:
    """Standard error of each text's profile [B]: the mean over its tokens, relative to the mean
    profile.

    By the delta method, the standard error of a norm is that of its square, divided by twice the
    norm.
    """
    n = drawn[:, None]
    means = total / n
    variances = ((squared / n - means.pow(2)).clamp(min=0) * n / (n - 1).clamp(min=1)) / n
    norms = means.sqrt()
    errors = torch.where(norms > 0, variances.sqrt() / (2 * norms), 0.0)
    level = (norms * real).sum(1)
    if not bool(torch.isfinite(level).all()):
        raise UserError("The gradient of a text's vector is not finite: use float32.")
    return torch.where(level > 0, (errors * real).sum(1) / level, 0.0)


register(
    MethodEntry(
        name="profile",
        title="Query-free profile",
        help="Norm of the Jacobian of the text's vector with respect to each token embedding: how "
        "sensitive the vector is to each token, for any query.",
        axis="Profile",
        unit="‖∂v/∂e‖F",
        signed=False,
        additive=False,
        needs=Capability.JACOBIAN,
        compute=attribute,
        order=4,
        citation="Girard 1989, doi 10.1007/BF01395775 (the estimator)",
        uses_gradients=True,
        slow=True,
        aggregate="mean",
        needs_query=False,
    )
)
