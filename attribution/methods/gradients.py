"""Input x gradient and integrated gradients (Sundararajan et al. 2017), through Captum.

Both are signed, in the score's units, and summed over the embedding's dimensions, at the word
embeddings before position embeddings are added.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from captum.attr import InputXGradient, IntegratedGradients
from torch import Tensor

from attribution.methods.perturbation import Varied, varied
from attribution.retrievers.base import Embedded, compare, encode, held
from attribution.retrievers.dense import Encoded
from attribution.types import Attribution, Method, Side, TextPair

STEPS = (16, 32, 64, 128, 256, 512)
"""Steps of integrated gradients that `auto` tries until the delta is small."""

DELTA = 1e-3
"""What `auto` calls small: the delta over the score."""


def input_x_gradient(
    retriever: Embedded, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """<e_j, d s / d e_j> of every token of both sides.

    Makes no claim of completeness: shares need not add up to the score.
    """
    started = time.perf_counter()
    with retriever.lock:
        queries, documents = encode(retriever, pairs)
        query_vectors = held(retriever, queries)
        of_documents, document_vectors, scores = _products(
            retriever, documents, query_vectors, "document"
        )
        of_queries, _, _ = _products(retriever, queries, document_vectors, "query")
    seconds = (time.perf_counter() - started) / len(pairs)
    return [
        Attribution(
            model=retriever.name,
            method=method,
            pair_id=pair.pair_id,
            score=float(scores[b]),
            query=queries.texts[b],
            document=documents.texts[b],
            query_scores=queries.row(of_queries, b).numpy(),
            document_scores=documents.row(of_documents, b).numpy(),
            seconds=seconds,
        )
        for b, pair in enumerate(pairs)
    ]


def _products(
    retriever: Embedded, encoded: Encoded, other: Any, side: Side
) -> tuple[Tensor, Any, Tensor]:
    """Sums over H of input times gradient [B, T], what `embed` makes of this side (detached) and
    scores [B]."""
    seen: dict[str, Any] = {}

    def score(inputs: Tensor) -> Tensor:
        with retriever.reading(inputs):
            vectors = retriever.embed(encoded)
        seen["vectors"] = vectors.detach()
        seen["scores"] = compare(retriever, vectors, other, side)
        return seen["scores"]

    inputs = retriever.input_embeddings(encoded).requires_grad_()
    products = InputXGradient(score).attribute(inputs).detach()
    summed = products.sum(-1, dtype=torch.float32).cpu()
    return summed, seen["vectors"], seen["scores"].detach().float().cpu()


def integrated_gradients(
    retriever: Embedded, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """The gradient averaged on the straight way from padding-token embeddings (special tokens
    kept) to the text's own, times the way.

    Shares add up to the score minus the baseline's score: the baseline's is the bias share, and
    Captum's convergence delta the completeness error. `steps=auto` doubles the steps until the
    delta is at most 0.001 of the score, up to 512; what is left is shown.
    """
    results = []
    for pair in pairs:
        started = time.perf_counter()
        with retriever.lock:
            document, query = (varied(retriever, pair, side) for side in ("document", "query"))
            with torch.no_grad():
                score = float(document.score(document.inputs))
                baseline = float(document.score(document.neutral))
            of_document, error = _integrated(document, score, str(method.params["steps"]))
            of_query, _ = _integrated(query, score, str(method.params["steps"]))
        results.append(
            Attribution(
                model=retriever.name,
                method=method,
                pair_id=pair.pair_id,
                score=score,
                query=query.encoded.texts[0],
                document=document.encoded.texts[0],
                query_scores=query.encoded.row(of_query, 0).numpy(),
                document_scores=document.encoded.row(of_document, 0).numpy(),
                bias_share=baseline,
                completeness_error=error,
                seconds=time.perf_counter() - started,
            )
        )
    return results


def _integrated(text: Varied, score: float, steps: str) -> tuple[Tensor, float]:
    method = IntegratedGradients(text.score, multiply_by_inputs=True)
    for n_steps in STEPS if steps == "auto" else (int(steps),):
        shares, delta = method.attribute(
            text.inputs,
            baselines=text.neutral,
            n_steps=n_steps,
            internal_batch_size=text.batch,
            return_convergence_delta=True,
        )
        # Captum's delta is sum - (score - baseline): ours has the other sign.
        error = -float(delta)
        if abs(error) <= DELTA * abs(score):
            break
    return shares.detach().sum(-1, dtype=torch.float32).cpu(), error
