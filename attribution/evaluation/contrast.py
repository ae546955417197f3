"""Contrast: each token's share of the difference between the scores of two documents."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from poslens.attribution.errors import UserError
from poslens.attribution.types import Attribution


@dataclass(frozen=True, slots=True)
class Contrast:
    """s(q, d1) - s(q, d2) split into shares: those of d1 and the negated ones of d2.

    `first` is d1's attribution and `second` d2's with negated shares of document and query.
    `difference` = `tokens` (document tokens of both) + `query` (0 unless query tokens have separate
    shares, as in models that read both texts together) + `bias` (the bias shares) + `error`.
    """

    first: Attribution
    second: Attribution
    difference: float
    tokens: float
    query: float
    bias: float
    error: float


def contrast(first: Attribution, second: Attribution) -> Contrast:
    """The contrast of two attributions of one query under one model and method.

    Raises:
        UserError: the method's shares do not sum to the score, so their difference is no share of
            the difference of the scores.
        ValueError: two methods or two models.
    """
    if (first.model, first.method) != (second.model, second.method):
        raise ValueError("a contrast is of one model under one method")
    sums = zip(_parts(first), _parts(second), strict=True)
    tokens, query, bias, error = (a - b for a, b in sums)
    return Contrast(
        first=first,
        second=negated(second),
        difference=first.score - second.score,
        tokens=tokens,
        query=query,
        bias=bias,
        error=error,
    )


def negated(attribution: Attribution) -> Attribution:
    """The attribution with the sign of every share changed; the score stays the same."""
    matrix = attribution.matrix
    return replace(
        attribution,
        query_scores=-attribution.query_scores,
        document_scores=-attribution.document_scores,
        matrix=None if matrix is None else -matrix,
    )


def _parts(attribution: Attribution) -> tuple[float, float, float, float]:
    """Sums over document tokens and query tokens, bias share and completeness error, which together
    are the score. Refuses methods that are not additive."""
    bias, error = attribution.bias_share, attribution.completeness_error
    if bias is None or error is None:
        raise UserError(
            f"The values of {attribution.method.name} don't sum to the score, so they don't "
            "explain the difference of the scores: choose a method whose shares sum to the score."
        )
    tokens = float(attribution.document_scores.astype(np.float64).sum())
    return tokens, attribution.score - tokens - bias - error, bias, error
