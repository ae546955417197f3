"""Both documents of a pair side by side, with each token's contribution to s(d1) - s(d2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.contrast import Contrast, contrast
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute import provenance
from poslens.compute.compute import Compute, Explained

NOTHING = 1e-4
"""Query contributions below this share of the larger score are rounding errors and not shown."""


def fitting(compute: Compute, spec: RetrieverSpec) -> list[str]:
    """Names of the methods that fit a model; those that support a contrast come first."""
    unfit = compute.unfit(compute.identify(spec))
    fit = [entry for name, entry in METHODS.items() if name not in unfit]
    # Additive methods first: their contributions sum to the score.
    fit.sort(key=lambda entry: (not entry.additive, entry.uses_gradients, entry.order))
    return [entry.name for entry in fit]


@dataclass(frozen=True, slots=True)
class Contrasted:
    """Both documents of a pair, attributed by one method. Without a `contrast`, for the `reason`
    given, each document's own attribution is shown."""

    first: Explained
    second: Explained
    contrast: Contrast | None
    reason: str = ""

    def shown(self) -> list[Explained]:
        """Both results with the contributions to draw; in a contrast, those of d2 are negated."""
        contrast = self.contrast
        pair = (
            (contrast.first, contrast.second)
            if contrast
            else (self.first.attribution, self.second.attribution)
        )
        return [
            replace(explained, attribution=replace(attribution, model=label, matrix=None))
            for explained, attribution, label in zip(
                (self.first, self.second), pair, ("d1", "d2"), strict=True
            )
        ]

    def provenance(self) -> list[Provenance]:
        """Provenance of both documents as drawn."""
        first, second = self.first.provenance(), self.second.provenance()
        return [first, second if self.contrast is None else provenance.negated(second)]


def contrast_note(contrast: Contrast) -> str:
    """The sums of the contributions to a contrast, as text."""
    scale = max(abs(contrast.first.score), abs(contrast.second.score))
    query = (
        f", query tokens {contrast.query:+z.4f}"
        if abs(contrast.query) > NOTHING * scale
        else ("; the query's tokens share the same difference among themselves")
    )
    return (
        "d1's shares are shown as they are and d2's negated, in one color range. They sum to "
        f"{contrast.tokens:+z.4f} of the difference {contrast.difference:+z.4f}. The bias shares "
        f"are {contrast.bias:+z.4f}, the completeness error {contrast.error:+z.1e}{query}."
    )


def contrasted(first: Explained, second: Explained) -> Contrasted:
    """The contrast s(q, d1) - s(q, d2) by tokens, computed from both documents' attributions. If
    that is not possible, the reason."""
    try:
        return Contrasted(first, second, contrast(first.attribution, second.attribution))
    except UserError as reason:
        return Contrasted(first, second, None, str(reason))
