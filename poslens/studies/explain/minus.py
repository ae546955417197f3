"""Differences of attributions: of two models on one text, by character, and of one model on two
documents, by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.positions import normalize
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.contrast import Contrast, contrast
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import sentences, words
from poslens.attribution.types import Array, Provenance, TokenizedText
from poslens.compute import provenance
from poslens.compute.compute import Compute, Explained
from poslens.figures.figure_base import quantity
from poslens.heatmap.data import Head, Pane, Rail

Floats = NDArray[np.float64]


def by_character(tokenized: TokenizedText, scores: Floats, length: int) -> Floats:
    """The scores of tokens [T], without special tokens, spread evenly over their characters
    [length]; their sum does not change."""
    values = np.zeros(length)
    content = scores[tokenized.content].tolist()
    for (start, end), score in zip(_extents(tokenized), content, strict=True):
        values[start:end] += score / (end - start)
    return values


def _extents(tokenized: TokenizedText) -> list[tuple[int, int]]:
    """The characters [start, end) of each token that is not special: at least one, which of an
    empty token (a trimmed space) is that at its position, or the last one that was read."""
    last = max(tokenized.read_until, 1) - 1
    starts = [(min(t.start, last), t.end) for t in tokenized.tokens if not t.is_special]
    return [(start, max(end, start + 1)) for start, end in starts]


def pieces(
    first: TokenizedText, second: TokenizedText, scores: tuple[Floats, Floats], length: int
) -> list[tuple[int, int, float]]:
    """(start, end, difference) of the pieces into which both tokenizations divide the text that
    both models read.

    If tokens coincide, the piece is the token and its value the difference of the two scores. If
    not, each piece gets a share of its tokens' scores by number of characters.
    """
    read = min(first.read_until, second.read_until)
    gap = by_character(first, scores[0], length) - by_character(second, scores[1], length)
    extents = _extents(first) + _extents(second)
    edges = sorted({min(edge, read) for extent in extents for edge in extent})
    covered = np.zeros(length, dtype=np.bool_)
    for start, end in extents:
        covered[start:end] = True
    return [
        (start, end, float(gap[start:end].sum()))
        for start, end in pairwise(edges)
        if covered[start]
    ]


def _scaled(scores: Array, tokenized: TokenizedText, normalization: str) -> Floats:
    """Scores [T] in the curve's unit, which both models share; 0 for special tokens."""
    values = np.zeros(len(scores))
    content = tokenized.content
    if content.any():
        values[content] = normalize(scores[content], normalization)  # type: ignore[arg-type]
    return values


def minus_panes(a: Explained, b: Explained, rail: Rail | None, head: Head) -> Sequence[Pane]:
    """A query pane and a document pane of A minus B, with each model's scores in the curve's
    unit."""
    method = a.attribution.method
    normalization = str(method.curve_params["normalization"])
    label = f"{a.attribution.model} − {b.attribution.model}"
    panes = []
    for side, text in (("query", a.pair.query), ("document", a.pair.document)):
        first, second = (getattr(result.attribution, side) for result in (a, b))
        scores = (
            _scaled(getattr(a.attribution, f"{side}_scores"), first, normalization),
            _scaled(getattr(b.attribution, f"{side}_scores"), second, normalization),
        )
        is_document = side == "document"
        read = min(first.read_until, second.read_until)
        evidence = a.pair.evidence if is_document else None
        language = a.pair.language if is_document else a.pair.asked_in
        panes.append(
            Pane(
                id=f"{label}/{side}",
                model=label,
                side=side,  # type: ignore[arg-type]
                text=text,
                tokens=tuple(
                    (start, end, float(f"{value:.6g}"))
                    for start, end, value in pieces(first, second, scores, len(text))
                ),
                words=tuple(words(text)),
                sentences=tuple(sentences(text, language)),
                evidence=(evidence.start, evidence.end) if evidence else None,
                truncated_at=read if first.truncated or second.truncated else None,
                signed=True,
                signs=(f"{a.attribution.model} higher", f"{b.attribution.model} higher"),
                unit=quantity(method),
                rail=rail if is_document else None,
                head=head if is_document else None,
            )
        )
    return panes


# -- two documents ---------------------------------------------------------------------------------

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
    that is not possible, the result has the reason instead."""
    try:
        return Contrasted(first, second, contrast(first.attribution, second.attribution))
    except UserError as reason:
        return Contrasted(first, second, None, str(reason))
