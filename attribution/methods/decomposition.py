"""Token decomposition: each token's exact, signed share of the score (DecompX, Modarressi et al.
2023; used on retrievers by Fayyaz et al. 2025), from the linearised network.

contribution_j = <x_j, d s_frozen / d x_j>, x_j what token j brings into the encoder. Shares and the
bias share add up to the score. A share is not an effect: taking the token out would change the
frozen weights too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from captum.attr import InputXGradient
from torch import Tensor, nn

from attribution.errors import UserError
from attribution.methods.linearised import linearised
from attribution.retrievers.dense import DenseRetriever, Encoded
from attribution.types import Attribution, Method, TextPair

TOLERANCE = 1e-3
"""Largest completeness error, relative to the score's parts, of a model that counts as linearised;
float32 leaves about 1e-6, 16 bit formats about 1e-2 (`_tolerance`)."""

MATRIX_CHUNK = 16
"""Query tokens whose gradients run through the document encoder together."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One side's shares of the score, the other side's vector held constant.

    `tokens` [B, T], `bias` [B], `scores` [B], all float32 or wider on the CPU; `directions` [B, H]
    is this side's pooled vector, scaled so that the score is an inner product.
    """

    tokens: Tensor
    bias: Tensor
    scores: Tensor
    directions: Tensor

    @property
    def error(self) -> Tensor:
        """score - sum of shares - bias share [B]; rounding, where nothing was missed."""
        return self.scores - self.tokens.sum(-1) - self.bias


def attribute(
    retriever: DenseRetriever, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """Shares of every document and every query token of a batch of pairs; with `matrix=yes` the
    share of each query token with each document token too.

    Raises:
        UserError: the model cannot be linearised, or its score is no inner product.
        torch.OutOfMemoryError: the batch does not fit.
    """
    started = time.perf_counter()
    with retriever.lock:
        queries = retriever.encode_texts([pair.query for pair in pairs], "query")
        documents = retriever.encode_texts([pair.document for pair in pairs], "document")
        with torch.no_grad():
            constant = retriever.directions(retriever.embed(queries))
        of_documents = shares(retriever, documents, constant)
        of_queries = shares(retriever, queries, of_documents.directions)
        matrices: list[Tensor | None] = [None] * len(pairs)
        if method.params.get("matrix") == "yes":
            matrices = [interactions(retriever, pair)[0] for pair in pairs]
    seconds = (time.perf_counter() - started) / len(pairs)
    results = []
    for b, pair in enumerate(pairs):
        error = float(of_documents.error[b])
        parts = float(of_documents.tokens[b].abs().sum() + of_documents.bias[b].abs())
        if abs(error) > _tolerance(retriever) * max(parts, 1e-6):
            raise UserError(
                f"{retriever.name} has layers that cannot be linearised (shares miss the score by "
                f"{error:.2g}): choose saliency, integrated gradients or occlusion."
            )
        matrix = matrices[b]
        results.append(
            Attribution(
                model=retriever.name,
                method=method,
                pair_id=pair.pair_id,
                score=float(of_documents.scores[b]),
                query=queries.texts[b],
                document=documents.texts[b],
                query_scores=queries.row(of_queries.tokens, b).float().numpy(),
                document_scores=documents.row(of_documents.tokens, b).float().numpy(),
                matrix=None if matrix is None else matrix.float().numpy(),
                bias_share=float(of_documents.bias[b]),
                completeness_error=error,
                seconds=seconds,
            )
        )
    return results


def shares(retriever: DenseRetriever, encoded: Encoded, other: Tensor) -> Shares:
    """Shares of one side's tokens in the inner product with `other` [B, H]: Captum's
    InputXGradient on the linearised encoder, with the constants as a second input of ones."""
    seen: dict[str, Tensor] = {}

    def score(inputs: Tensor, bias_scale: Tensor) -> Tensor:
        directions = _linear_directions(retriever, encoded, inputs, bias_scale)
        seen["directions"] = directions.detach()
        seen["scores"] = (directions * other).sum(-1)
        return seen["scores"]

    inputs = retriever.entering(encoded, retriever.entry).requires_grad_()
    bias_scale = torch.ones(len(inputs), device=inputs.device, dtype=inputs.dtype).requires_grad_()
    products, bias = InputXGradient(score).attribute((inputs, bias_scale))
    wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    return Shares(
        products.detach().sum(-1, dtype=wide).cpu(),
        bias.detach().to(wide).cpu(),
        seen["scores"].detach().to(wide).cpu(),
        seen["directions"],
    )


def interactions(retriever: DenseRetriever, pair: TextPair) -> tuple[Tensor, Tensor, Tensor, float]:
    """The score as a sum over pairs of tokens: M [Q, D] with M_ij = <Q_i, D_j>, where Q_i (D_j) is
    the share of query token i (document token j) in the pooled vector; special tokens included.

    Returns M, <Q_bias, D_j> [D], <Q_i, D_bias> [Q] and <Q_bias, D_bias>; all together they sum to
    the score. No array of D x D x H is made: Q vectors run backwards through the document encoder.
    """
    queries = retriever.encode_texts([pair.query], "query")
    documents = retriever.encode_texts([pair.document], "document")
    vectors = token_vectors(retriever, queries)  # [Q + 1, H], the last one of the constants
    inputs = retriever.entering(documents, retriever.entry).requires_grad_()
    bias_scale = torch.ones(1, device=inputs.device, dtype=inputs.dtype).requires_grad_()
    directions = _linear_directions(retriever, documents, inputs, bias_scale)
    rows, biases = [], []
    for start in range(0, len(vectors), MATRIX_CHUNK):
        part = vectors[start : start + MATRIX_CHUNK]
        gradients, bias = torch.autograd.grad(
            directions,
            (inputs, bias_scale),
            part[:, None, :],
            is_grads_batched=True,
            retain_graph=start + MATRIX_CHUNK < len(vectors),
        )
        rows.append(torch.einsum("kth,th->kt", gradients[:, 0], inputs.detach()[0]))
        biases.append(bias[:, 0])
    matrix, bias_column = torch.cat(rows).cpu(), torch.cat(biases).cpu()
    return matrix[:-1], matrix[-1], bias_column[:-1], float(bias_column[-1])


def token_vectors(retriever: DenseRetriever, encoded: Encoded) -> Tensor:
    """Each token's vector in the pooled, scaled embedding of one text [T + 1, H]; the last row is
    the constants'. Rows add up to the embedding.

    With u any vector, <x_i, J_i^T u> is linear in u; its gradient by u is J_i x_i. So T + 1
    vectors come from one backward pass that is differentiated once more.
    """
    inputs = retriever.entering(encoded, retriever.entry).requires_grad_()
    bias_scale = torch.ones(1, device=inputs.device, dtype=inputs.dtype).requires_grad_()
    directions = _linear_directions(retriever, encoded, inputs, bias_scale)
    probe = torch.zeros_like(directions).requires_grad_()
    gradients, bias = torch.autograd.grad(
        directions, (inputs, bias_scale), probe, create_graph=True
    )
    products = torch.cat([(gradients * inputs.detach()).sum(-1)[0], bias])
    (vectors,) = torch.autograd.grad(
        products,
        probe,
        torch.eye(len(products), device=inputs.device, dtype=inputs.dtype),
        is_grads_batched=True,
    )
    return vectors[:, 0].detach()


def position_shares(retriever: DenseRetriever, encoded: Encoded, other: Tensor) -> Tensor | None:
    """How much of each token's share [B, T] its position embedding brings; None where the model
    adds none to its words (relative and rotary positions)."""
    module = getattr(retriever.entry, "position_embeddings", None)
    if not isinstance(module, nn.Embedding):
        return None

    def score(inputs: Tensor, bias_scale: Tensor) -> Tensor:
        with linearised(retriever.backbone, bias_scale), retriever.reading(inputs, module):
            directions = retriever.directions(retriever.embed(encoded))
        return (directions * other).sum(-1)

    positions = retriever.entering(encoded, module)
    batch = len(other)
    # The embedding of positions is looked up once for the whole batch; each row needs its own.
    inputs = positions.expand(batch, *positions.shape[1:]).clone().requires_grad_()
    bias_scale = torch.ones(batch, device=inputs.device, dtype=inputs.dtype).requires_grad_()
    products, _ = InputXGradient(score).attribute((inputs, bias_scale))
    return products.detach().sum(-1).cpu()


def _linear_directions(
    retriever: DenseRetriever, encoded: Encoded, inputs: Tensor, bias_scale: Tensor
) -> Tensor:
    with linearised(retriever.backbone, bias_scale), retriever.reading(inputs, retriever.entry):
        return retriever.directions(retriever.embed(encoded))


def _tolerance(retriever: DenseRetriever) -> float:
    return TOLERANCE if retriever.precision == "float32" else 0.05
