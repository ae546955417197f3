"""Gradient saliency (Simonyan et al. 2014), as in section 5.3 of the PosIR paper, through Captum.

saliency_j = ||d s / d e_j||_2 with e_j the word embedding of token j, before position embeddings
are added, and the other side held constant. In units of the score per unit of
embedding; without a sign, and no share of the score: it says where the score is sensitive.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from captum.attr import Saliency
from torch import Tensor

from attribution.retrievers.base import Embedded, compare, encode, held
from attribution.retrievers.dense import Encoded
from attribution.types import Attribution, Method, Side, TextPair


def attribute(retriever: Embedded, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """Saliency of every document token and every query token of a batch of pairs.

    Two passes: the document's gradients with the query constant, then the other way round.
    Results do not depend on what else is in the batch.

    Raises:
        UserError: a text without tokens; a score or gradient that is not finite.
        torch.OutOfMemoryError: the batch does not fit.
    """
    started = time.perf_counter()
    with retriever.lock:
        queries, documents = encode(retriever, pairs)
        query_vectors = held(retriever, queries)
        document_norms, document_vectors, scores = gradient_norms(
            retriever, documents, query_vectors
        )
        query_norms, _, _ = gradient_norms(retriever, queries, document_vectors, "query")
    seconds = (time.perf_counter() - started) / len(pairs)
    return [
        Attribution(
            model=retriever.name,
            method=method,
            pair_id=pair.pair_id,
            score=float(scores[b]),
            query=queries.texts[b],
            document=documents.texts[b],
            query_scores=queries.row(query_norms, b).numpy(),
            document_scores=documents.row(document_norms, b).numpy(),
            seconds=seconds,
        )
        for b, pair in enumerate(pairs)
    ]


def gradient_norms(
    retriever: Embedded, encoded: Encoded, other: Any, side: Side = "document"
) -> tuple[Tensor, Any, Tensor]:
    """||d s / d e_j||_2 of the tokens of `side` with the other side as `held` gives it.

    Returns norms [B, T] (float32, on the CPU), what `embed` makes of this side (detached; pooled
    vectors [B, H] of a dense retriever) and the scores [B] (float32, on the CPU).
    """
    seen: dict[str, Any] = {}

    def score(inputs: Tensor) -> Tensor:
        with retriever.reading(inputs):
            vectors = retriever.embed(encoded)
        seen["vectors"] = vectors.detach()
        seen["scores"] = compare(retriever, vectors, other, side)
        return seen["scores"]

    inputs = retriever.input_embeddings(encoded).requires_grad_()
    gradients = Saliency(score).attribute(inputs, abs=False)
    norms = torch.linalg.vector_norm(gradients, dim=-1, dtype=torch.float32)
    return norms.cpu(), seen["vectors"], seen["scores"].detach().float().cpu()
