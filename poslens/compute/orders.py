"""Sorts pairs by their stored results; computes no results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.curve_summary import center_of_mass
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import N_BINS, Array, TextPair
from poslens.cache.storage.store import StoredCurves

AS_GIVEN = "data set"
SHUFFLED = "random"
ORDERS = (AS_GIVEN, "score", "center of mass", "smallest evidence share", "disagreement", SHUFFLED)
HELP = (
    "Score and center of mass sort from high to low. Smallest evidence share: pairs whose "
    "evidence gets the least of the curve for its length (only documents read in full). "
    "Disagreement: distance between the curves of the first two models, 0 to 1. Pairs without "
    "results come last; Curves computes them."
)


def arrange(
    pairs: Pairs,
    order: str,
    stored: Callable[[int], StoredCurves | None],
) -> tuple[Pairs, Mapping[str, float]]:
    """The pairs in the order of this name, one of `ORDERS`, and the value they are sorted by, by
    pair id. Pairs without a value come last.

    `stored(i)` returns the stored results of the i-th selected model; it is called only for orders
    that need them.
    """
    if order == AS_GIVEN:
        return pairs, {}
    if order == SHUFFLED:
        return pairs.select(np.random.default_rng(0).permutation(len(pairs))), {}
    # A curve of zeros has no center of mass and no shares.
    values = {p: value for p, value in _values(pairs, order, stored).items() if np.isfinite(value)}
    sign = 1 if order == "smallest evidence share" else -1
    ranks = np.array([sign * values.get(pair_id, sign * np.inf) for pair_id in pairs.ids])
    return pairs.select(np.argsort(ranks, kind="stable")), values


def _values(
    pairs: Sequence[TextPair], order: str, stored: Callable[[int], StoredCurves | None]
) -> dict[str, float]:
    first = stored(0)
    if first is None:
        return {}
    if order == "score":
        return dict(zip(first.pair_ids, first.scores.tolist(), strict=True))
    if order == "center of mass":
        centers = center_of_mass(first.magnitudes, first.positions).tolist()
        return dict(zip(first.pair_ids, centers, strict=True))
    if order == "disagreement":
        second = stored(1)
        if second is None:
            return {}
        rows = {pair_id: row for row, pair_id in enumerate(second.pair_ids)}
        both = [(i, row, rows[i]) for row, i in enumerate(first.pair_ids) if i in rows]
        if not both:
            return {}
        ids, rows_of_first, rows_of_second = zip(*both, strict=True)
        distance = apart(
            first.magnitudes[list(rows_of_first)], second.magnitudes[list(rows_of_second)]
        )
        return dict(zip(ids, distance.tolist(), strict=True))
    by_id = {pair.pair_id: pair for pair in pairs}
    values = {}
    for pair_id, share, cut in zip(
        first.pair_ids, _shares(first.magnitudes), first.truncated, strict=True
    ):
        pair = by_id[pair_id]
        # For a truncated document the curve covers the text that was read, the evidence span the
        # whole text.
        if pair.evidence is not None and not cut:
            length = len(pair.document)
            values[pair_id] = in_span(
                share, pair.evidence.start / length, pair.evidence.end / length
            )
    return values


def apart(first: Array, second: Array) -> NDArray[np.float64]:
    """Total variation distance [n] between two models' curves of the same pairs [n, 100], by
    magnitude: 0 (identical) to 1 (disjoint); NaN for curves of zeros."""
    distance: NDArray[np.float64] = np.abs(_shares(first) - _shares(second)).sum(-1) / 2
    return distance


def in_span(share: Array, start: float, end: float) -> float:
    """Enrichment of a span [start, end], in shares of the document, in a curve of shares [100] that
    sum to 1: the span's share divided by its length, so that an even curve gives 1. Bins count by
    their overlap with the span."""
    edges = np.arange(N_BINS + 1) / N_BINS
    overlap = np.minimum(edges[1:], end) - np.maximum(edges[:-1], start)
    weights = np.clip(overlap, 0, None) * N_BINS
    return float((share @ weights) / max(end - start, 1e-9))


def _shares(magnitudes: Array) -> Array:
    """Magnitudes [n, 100] as shares that sum to 1; NaN where all are zero."""
    weights = np.asarray(magnitudes, dtype=np.float64)
    total = weights.sum(-1, keepdims=True)
    shares: Array = np.divide(weights, total, out=np.full_like(weights, np.nan), where=total > 0)
    return shares
