"""Gradient saliency (Simonyan et al. 2014), as in section 5.3 of the PosIR paper, through Captum.

saliency_j = ||d s / d e_j||_2 with e_j the word embedding of token j, before position embeddings
are added, and the other side's pooled embedding held constant. In units of the score per unit of
embedding; without a sign, and no share of the score: it says where the score is sensitive.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from captum.attr import Saliency
from torch import Tensor

from attribution.retrievers.dense import DenseRetriever, Encoded
from attribution.types import Attribution, Method, TextPair


def attribute(
    retriever: DenseRetriever, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """Saliency of every document token and every query token of a batch of pairs.

    Two passes: the document's gradients with the query constant, then the other way round.
    Results do not depend on what else is in the batch.

    Raises:
        UserError: a text without tokens; a score or gradient that is not finite.
        torch.OutOfMemoryError: the batch does not fit.
    """
    started = time.perf_counter()
    with retriever.lock:
        queries = retriever.encode_texts([pair.query for pair in pairs], "query")
        documents = retriever.encode_texts([pair.document for pair in pairs], "document")
        with torch.no_grad():
            query_vectors = retriever.embed(queries)
        document_norms, document_vectors, scores = gradient_norms(
            retriever, documents, query_vectors
        )
        query_norms, _, _ = gradient_norms(retriever, queries, document_vectors)
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
    retriever: DenseRetriever, encoded: Encoded, other: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """||d s / d e_j||_2 of one side's tokens with the other side's vectors [B, H] constant.

    Returns norms [B, T] (float32, on the CPU), this side's pooled vectors [B, H] (detached) and
    the scores [B] (float32, on the CPU).
    """
    seen: dict[str, Tensor] = {}

    def score(inputs: Tensor) -> Tensor:
        with retriever.reading(inputs):
            vectors = retriever.embed(encoded)
        seen["vectors"] = vectors.detach()
        seen["scores"] = retriever.similarity(vectors, other)
        return seen["scores"]

    inputs = retriever.input_embeddings(encoded).requires_grad_()
    gradients = Saliency(score).attribute(inputs, abs=False)
    norms = torch.linalg.vector_norm(gradients, dim=-1, dtype=torch.float32)
    return norms.cpu(), seen["vectors"], seen["scores"].detach().float().cpu()
