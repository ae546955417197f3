"""Integrated gradients (Sundararajan et al. 2017), through Captum: signed, in the score's units,
summed over the embedding's dimensions, at the word embeddings before position embeddings are
added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attribution.methods.base import (
    Clock,
    MethodEntry,
    Parameter,
    build_batch,
    register,
)
from attribution.methods.perturbation import Perturbed, perturbed
from attribution.retrievers.base import Embedded
from attribution.retrievers.family import Capability
from attribution.types import Attribution, Method, TextPair

STEPS = (16, 32, 64, 128, 256, 512)
"""Steps of integrated gradients that `auto` tries until the delta is small."""

DELTA = 1e-3
"""What `auto` calls small: the delta over the score."""


def attribute(retriever: Embedded, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """The gradient averaged on the straight way from padding-token embeddings (special tokens
    kept) to the text's own, times the way.

    Shares add up to the score minus the baseline's score: the baseline's is the bias share, and
    Captum's convergence delta the completeness error. `steps=auto` doubles the steps until the
    delta is at most 0.001 of the score, up to 512; what is left is shown.
    """
    results = []
    for pair in pairs:
        clock = Clock()
        with retriever.lock:
            document, query = (perturbed(retriever, pair, side) for side in ("document", "query"))
            with torch.no_grad():
                score = float(document.score(document.inputs))
                baseline = float(document.score(document.baseline))
            of_document, error = _integrated(document, score, str(method.params["steps"]))
            of_query, _ = _integrated(query, score, str(method.params["steps"]))
        results += build_batch(
            retriever,
            method,
            [pair],
            clock,
            scores=torch.tensor([score], dtype=torch.float64),
            queries=query.encoded,
            documents=document.encoded,
            query_scores=of_query,
            document_scores=of_document,
            bias_shares=torch.tensor([baseline], dtype=torch.float64),
            completeness_errors=torch.tensor([error], dtype=torch.float64),
        )
    return results


def _integrated(text: Perturbed, score: float, steps: str) -> tuple[Tensor, float]:
    from captum.attr import IntegratedGradients  # here: slow to import

    method = IntegratedGradients(text.score, multiply_by_inputs=True)
    for n_steps in STEPS if steps == "auto" else (int(steps),):
        shares, delta = method.attribute(
            text.inputs,
            baselines=text.baseline,
            n_steps=n_steps,
            internal_batch_size=text.batch,
            return_convergence_delta=True,
        )
        # Captum's delta is sum - (score - baseline): ours has the other sign.
        error = -float(delta)
        if abs(error) <= DELTA * abs(score):
            break
    return shares.detach().sum(-1, dtype=torch.float32).cpu(), error


register(
    MethodEntry(
        name="integrated_gradients",
        title="Integrated gradients",
        help="Gradients averaged on the way from padding tokens to the text: signed shares of the "
        "score above the padding's score. Slow.",
        axis="Integrated gradients",
        unit="score",
        signed=True,
        additive=True,
        needs=Capability.GRADIENTS,
        version=1,
        compute=attribute,
        order=3,
        citation="Sundararajan, Taly and Yan 2017, arXiv 1703.01365",
        uses_gradients=True,
        slow=True,
        parameters=(
            Parameter(
                "steps",
                ("auto", *map(str, STEPS)),
                "Points on the way; auto doubles them until the shares add up, to 0.1% of it.",
            ),
        ),
    )
)
