"""What a retriever shows of itself before its numbers are trusted: run once, after loading.

Hooks and the linearised network reach into code that is not ours. Whether they reached everything
is measured on the model itself, on a short pair, rather than assumed from its architecture.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attribution.errors import UserError
from attribution.methods import METHODS, make_method
from attribution.methods.decomposition import TOLERANCE
from attribution.retrievers.dense import DenseRetriever
from attribution.retrievers.detect import family_of
from attribution.retrievers.encoded import Encoded
from attribution.types import TextPair

PROBE = TextPair(
    "probe",
    "when does the tide turn",
    "The tide turns about every six hours. Charts give the hours of high and low water, "
    "and harbours print them each year.",
)
READING = 1e-3
"""Largest distance from sentence-transformers' own embedding, whose length is 1, in float32."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Measured on `PROBE`.

    `reading` is the distance between PosLens's embedding of the document and that of
    sentence-transformers, over its length, or where there is none the distance between the two
    scores; `against` says what was compared with what. `forward` is how far linearising moves the
    score; `completeness` how far decomposition's shares and bias share miss it, relative to their
    absolute sum (None where the model cannot be linearised). `unfit` names the methods that do not
    work on this model, each with the reason.
    """

    reading: float
    forward: float | None = None
    completeness: float | None = None
    unfit: dict[str, str] = field(default_factory=dict)
    against: str = "embedding as in sentence-transformers"

    def sentence(self) -> str:
        """For the page."""
        words = f"{self.against} to {self.reading:.0e}"
        if self.completeness is not None:
            words += (
                f"; linearised, the score moves by {self.forward:.0e} and the shares miss it by "
                f"{self.completeness:.0e} of their sum"
            )
        return f"Checked on loading: {words}."


def prove(retriever: Any) -> Proof:
    """Put a retriever to the proof.

    Raises:
        UserError: it reads texts differently than sentence-transformers does, so that nothing
            computed of it could be trusted, or cannot read a plain text at all.
    """
    try:
        return _prove(retriever)
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # Whatever a configuration leads to that does not fit the weights: indices outside of
        # tables, shapes that do not meet.
        logging.getLogger(__name__).info("%s fails on a text", retriever.name, exc_info=True)
        raise UserError(
            f"{retriever.name} fails on a plain text ({type(error).__name__}): its configuration "
            "and tokenizer do not fit its weights, so restore its files."
        ) from error


def _prove(retriever: Any) -> Proof:
    if retriever.family != "dense":
        return _prove_scores(retriever)
    with retriever.lock, torch.no_grad():
        documents = retriever.encode_texts([PROBE.document], "document")
        queries = retriever.encode_texts([PROBE.query], "query")
        score = float(retriever.similarity(retriever.embed(queries), retriever.embed(documents)))
        reading = _distance(retriever, documents, PROBE.document)
        if retriever.asymmetric:
            reading = max(reading, _distance(retriever, queries, PROBE.query))
    coarse = retriever.precision in ("bfloat16", "float16")
    if not math.isfinite(reading):
        overflow = retriever.precision == "float16"
        raise UserError(
            f"{retriever.name} embeds a plain text as numbers that are not finite: "
            + (
                "float16 is too narrow for it, set POSLENS_PRECISION to bfloat16 or float32."
                if overflow
                else "check its weights."
            )
        )
    if not reading <= (0.05 if coarse else READING):
        raise UserError(
            f"{retriever.name} embeds the same text differently here than sentence-transformers "
            f"does (by {reading:.1%}): its modules do more than PosLens follows."
        )
    return _linearised(retriever, score, Proof(reading, unfit=_without_gradient(retriever)))


def _linearised(retriever: Any, score: float, proof: Proof) -> Proof:
    """`proof` with what decomposition shows; `score` is the one of the model as it is."""
    method = make_method("decomposition")
    try:
        found = METHODS[method.name].compute(retriever, method, [PROBE])[0]
    except UserError as error:
        return replace(proof, unfit={**proof.unfit, method.name: str(error)})
    assert found.completeness_error is not None and found.bias_share is not None
    parts = max(float(abs(found.document_scores).sum()) + abs(found.bias_share), 1e-6)
    forward = abs(found.score - score)
    unfit = proof.unfit
    coarse = retriever.precision in ("bfloat16", "float16")
    if forward > (0.05 if coarse else TOLERANCE) * max(1.0, abs(score)):
        unfit = {**unfit, method.name: f"linearising moves its score by {forward:.2g}"}
    missed = abs(found.completeness_error) / parts
    return replace(proof, forward=forward, completeness=missed, unfit=unfit)


def _prove_scores(retriever: Any) -> Proof:
    """Of families that give a score and no one embedding: the score against the library's."""
    with retriever.lock:
        reading = retriever.check(PROBE)
    coarse = retriever.precision in ("bfloat16", "float16")
    library = "bm25s" if retriever.family == "lexical" else "sentence-transformers"
    library = getattr(retriever, "library", library)
    if not reading <= (0.05 if coarse else READING):
        raise UserError(
            f"{retriever.name} scores the same pair differently here than {library} does (by "
            f"{reading:.1%}): its modules do more than PosLens follows."
        )
    family = family_of(retriever.spec)
    gradients = METHODS["saliency"].fits(family)
    unfit = _without_gradient(retriever) if gradients else {}
    proof = Proof(reading, unfit=unfit, against=f"score as in {library}")
    if not METHODS["decomposition"].fits(family):
        return proof
    score = METHODS["saliency"].compute(retriever, make_method("saliency"), [PROBE])[0].score
    return _linearised(retriever, score, proof)


def _without_gradient(retriever: Any) -> dict[str, str]:
    """The gradient methods with the reason, where no gradient reaches the word embeddings."""
    unfit: dict[str, str] = {}
    try:
        found = METHODS["saliency"].compute(retriever, make_method("saliency"), [PROBE])[0]
        reason = "" if found.document_scores.any() else "no gradient reaches its word embeddings"
    except UserError as error:
        reason = str(error)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = "no gradient reaches its word embeddings"
    if reason:
        using = (name for name, entry in METHODS.items() if entry.uses_gradients)
        unfit.update(dict.fromkeys(using, reason))
    return unfit


def _distance(retriever: DenseRetriever, encoded: Encoded, text: str) -> float:
    """From sentence-transformers' own embedding of `text`, over its length; hold the lock."""
    side = encoded.side
    ours = retriever.embed(encoded).float()
    theirs = (
        retriever.encoder(side)
        .encode(
            [text],
            prompt=retriever.prompts[side] or None,
            task=side,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        .float()
    )
    return float((ours - theirs).norm() / theirs.norm())
