"""Self-check of a retriever, once after loading, before its numbers are trusted.

Hooks and the linearized network depend on the code of other libraries. Whether they work is
measured on the model itself, with a short pair, instead of assumed from its architecture.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from poslens.attribution.batching import out_of_memory
from poslens.attribution.errors import RunEnded, UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.methods.decomposition import tolerance
from poslens.attribution.retrievers.base import LibraryCheck, Retriever
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.retrievers.load import exceeds_memory
from poslens.attribution.retrievers.scoring import score_texts
from poslens.attribution.types import TextPair

PROBE = TextPair(
    "probe",
    "when does the tide turn",
    "The tide turns about every six hours. Charts give the hours of high and low water, "
    "and harbours print them each year.",
)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Results for `PROBE`.

    `library` is the distance from the library's result. `forward` is the change in the score by
    linearizing; `completeness` is decomposition's completeness error relative to the absolute sum
    of its shares (None if the model cannot be linearized). `unfit` has the methods that do not work
    with this model, each with the reason.
    """

    library: LibraryCheck
    forward: float | None = None
    completeness: float | None = None
    unfit: Mapping[str, str] = field(default_factory=dict)

    def sentence(self) -> str:
        """One line for the page."""
        checked = self.library
        words = f"{checked.compared} equal to {checked.library} within {checked.distance:.0e}"
        if self.completeness is not None:
            words += (
                f"; linearizing changes the score by {self.forward:.0e}, and the completeness "
                f"error is {self.completeness:.0e} of the sum of absolute shares"
            )
        return f"Checked when loaded: {words}."


def check_retriever(retriever: Retriever) -> SelfCheck:
    """Compare a retriever with its library, and determine which methods work with it.

    Raises:
        UserError: it reads texts differently than its library, so its numbers would be wrong, or it
            cannot read a plain text, or needs more memory for one than is free.
    """
    try:
        return _check(retriever)
    except UserError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise exceeds_memory(retriever.name, retriever.device) from error
        # A configuration that does not fit the weights: indices outside of tables, shapes that
        # differ.
        logging.getLogger(__name__).info("%s fails on a text", retriever.name, exc_info=True)
        raise UserError(
            f"{retriever.name} fails on a plain text ({type(error).__name__}), so its "
            "configuration and tokenizer don't match its weights: restore its files."
        ) from error


def _check(retriever: Retriever) -> SelfCheck:
    library = require_library_embedding(retriever)
    family = family_of(retriever.spec)
    unfit = _without_gradient(retriever) if METHODS["saliency"].fits(family) else {}
    unfit |= _without_inner_product(retriever)
    if not METHODS["decomposition"].fits(family) or "decomposition" in unfit:
        return SelfCheck(library, unfit=unfit)
    method = make_method("decomposition")
    score = float(score_texts(retriever, [(PROBE.query, PROBE.document)])[0])
    try:
        result = METHODS[method.name].compute(retriever, method, [PROBE])[0]
    except RunEnded:
        raise
    except UserError as error:
        return SelfCheck(library, unfit=unfit | {method.name: str(error)})
    assert result.completeness_error is not None and result.bias_share is not None
    parts = max(float(abs(result.document_scores).sum()) + abs(result.bias_share), 1e-6)
    forward = abs(result.score - score)
    if forward > tolerance(retriever) * max(1.0, abs(score)):
        unfit = unfit | {method.name: f"linearizing changes its score by {forward:.2g}"}
    return SelfCheck(library, forward, abs(result.completeness_error) / parts, unfit)


def require_library_embedding(retriever: Retriever) -> LibraryCheck:
    """The distance of a retriever's numbers from its library's.

    Raises:
        UserError: it is larger than rounding explains, or the numbers are not finite.
    """
    with retriever.lock:
        library = retriever.check(PROBE)
    embedding = library.compared == "embedding"
    if not math.isfinite(library.distance):
        raise UserError(
            f"{retriever.name} {'embeds' if embedding else 'scores'} a plain text, and the result "
            "is not finite: "
            + (
                "set POSLENS_PRECISION to bfloat16 or float32 instead of float16."
                if retriever.precision == "float16"
                else "check its weights."
            )
        )
    if library.distance > tolerance(retriever):
        raise UserError(
            f"{retriever.name} {'embeds the same text' if embedding else 'scores the same pair'} "
            f"differently in PosLens than in {library.library} (by {library.distance:.1%}): "
            "PosLens does not support its modules."
        )
    return library


def _without_inner_product(retriever: Retriever) -> dict[str, str]:
    """The methods that divide an inner product, with the reason, if the score is a distance."""
    if not isinstance(retriever, DenseRetriever) or not retriever.distance:
        return {}
    reason = f"it scores by {retriever.distance} distance, which is not a sum over tokens"
    needs = (Capability.LINEAR, Capability.JACOBIAN)
    return {name: reason for name, entry in METHODS.items() if entry.needs in needs}


def _without_gradient(retriever: Retriever) -> dict[str, str]:
    """The gradient methods with the reason, if no gradient reaches the word embeddings."""
    reason = "no gradient reaches its token embeddings"
    try:
        # Unlike saliency, it does not import Captum, which other methods do without.
        method = make_method("input_x_gradient")
        result = METHODS[method.name].compute(retriever, method, [PROBE])[0]
        if result.document_scores.any():
            return {}
    except RunEnded:
        raise
    except UserError as error:
        reason = str(error)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
    return {name: reason for name, entry in METHODS.items() if entry.uses_gradients}
