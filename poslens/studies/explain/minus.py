"""Difference of two models' attributions of the same text, by character."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.positions import normalize
from poslens.attribution.text import sentences, words
from poslens.attribution.types import Array, TokenizedText
from poslens.compute.compute import Explained
from poslens.figures.figure_base import quantity
from poslens.heatmap.data import Head, Pane, Rail

Floats = NDArray[np.float64]


def by_character(tokenized: TokenizedText, scores: Floats, length: int) -> Floats:
    """The scores of tokens [T] spread evenly over their characters [length], with the same sum
    without special tokens. An empty token adds its score to the character at its position."""
    values = np.zeros(length)
    for token, score in zip(tokenized.tokens, scores.tolist(), strict=True):
        if token.is_special:
            continue
        start = min(token.start, length - 1)
        end = max(token.end, start + 1)
        values[start:end] += score / (end - start)
    return values


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
    tokens = [t for side in (first, second) for t in side.tokens if not t.is_special]
    edges = sorted({min(edge, read) for t in tokens for edge in (t.start, t.end)})
    covered = np.zeros(length, dtype=np.bool_)
    for token in tokens:
        covered[token.start : token.end] = True
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


def minus_panes(a: Explained, b: Explained, rail: Rail, head: Head) -> Sequence[Pane]:
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
                sentences=tuple(sentences(text, a.pair.language)),
                evidence=(evidence.start, evidence.end) if evidence else None,
                truncated_at=read if first.truncated or second.truncated else None,
                signed=True,
                unit=quantity(method),
                rail=rail if is_document else None,
                head=head if is_document else None,
            )
        )
    return panes
