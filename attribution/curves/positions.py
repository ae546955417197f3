"""Resampling of token scores to bins of relative position, and the curve of one document.

`p99` and `point` follow PosIR (section 5.3 of the paper and its published scripts). The mean over
bins, `bin_mean`, which uses every token, is PosLens's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import Values, divided
from poslens.attribution.text import inside, unit_of, word_spans, words
from poslens.attribution.types import (
    N_BINS,
    Array,
    Attribution,
    EvidenceSpan,
    Method,
    PositionCurve,
    TokenizedText,
    as_array,
)

Normalization = Literal["p99", "max", "none"]
Resampling = Literal["bin_mean", "point"]
NORMALIZATIONS: tuple[Normalization, ...] = ("p99", "max", "none")
RESAMPLINGS: tuple[Resampling, ...] = ("bin_mean", "point")

Aggregate = Literal["sum", "mean", "max"]
"""How token scores become the score of a word or sentence: see `aggregated`."""

LENGTH_BUCKETS = ("Q1", "Q2", "Q3", "Q4")
BUCKET_EDGES = (512, 1024, 1536)
BUCKET_WORDS = {
    "Q1": "≤ 512 tokens",
    "Q2": "513–1,024 tokens",
    "Q3": "1,025–1,536 tokens",
    "Q4": "> 1,536 tokens",
}
"""The length buckets in words, because Q1 can be taken for a quartile or a query."""

_TOGETHER = 64
"""Number of documents whose curves are computed together."""


def positions(resampling: Resampling) -> Values:
    """Relative positions [100] of a curve's points, used for axes, tables and the center of mass.

    `bin_mean` averages over bins, so a point is at the center of its bin, (b + 0.5) / 100. `point`
    samples at b / 99, as PosIR's scripts do; with it, the centers of mass of PosIR's published
    curves are reproduced (0.424 and 0.639).
    """
    if resampling == "point":
        return np.linspace(0.0, 1.0, N_BINS)
    return (np.arange(N_BINS) + 0.5) / N_BINS


POSITIONS = positions("point")


def length_bucket(n_tokens: int) -> str:
    """PosIR's bucket: Q1 (0,512], Q2 (512,1024], Q3 (1024,1536], Q4 above."""
    return LENGTH_BUCKETS[sum(n_tokens > edge for edge in BUCKET_EDGES)]


def normalize(scores: NDArray[np.floating], how: Normalization) -> Values:
    """Scale one document's scores [D] so that documents can be averaged.

    `p99` clips at the 99th percentile of the magnitudes and divides by it, as PosIR's scripts do;
    `max` divides by the largest magnitude, as PosIR's text states; `none` does not scale. Signs do
    not change, and all zeros remain zeros.
    """
    values = np.asarray(scores, dtype=np.float64)
    (scaled,) = _normalized(values[None], np.array([len(values)]), how)
    return np.asarray(scaled, np.float64)


def _normalized(rows: Values, lengths: NDArray[np.int64], how: Normalization) -> Values:
    """`normalize` for several documents' scores [N, longest], each padded with zeros."""
    if how == "none":
        return rows
    sizes = np.abs(rows)
    limits = largest = sizes.max(1)
    if how == "p99":
        # Bitwise the same as numpy.percentile, which takes one length at a time; padding zeros
        # come first in sorted order.
        rank = (lengths - 1) * (99 / 100)
        below = np.floor(rank)
        part, first = rank - below, rows.shape[1] - lengths + below.astype(np.int64)
        each = np.arange(len(rows))
        ordered = np.sort(sizes, axis=1)
        low, high = ordered[each, first], ordered[each, np.minimum(first + 1, rows.shape[1] - 1)]
        step = high - low
        limits = np.where(part >= 0.5, high - step * (1 - part), low + step * part)
        # With few nonzero scores the 99th percentile is zero: divide by the maximum instead.
        limits = np.where(limits == 0.0, largest, limits)
    limits = np.where(limits == 0.0, 1.0, limits)[:, None]
    return np.clip(rows, -limits, limits) / limits


def resample(scores: NDArray[np.floating], how: Resampling, bins: int = N_BINS) -> Values:
    """Resample D scores to `bins` points.

    `point` interpolates linearly between token indices scaled to [0, 1] (PosIR), so it uses two
    tokens per point of a long document. `bin_mean` averages: token j fills [j/D, (j+1)/D), and a
    bin's value is the mean over the bin. Every token counts, and the mean over bins equals the mean
    over tokens.
    """
    values = np.asarray(scores, dtype=np.float64)
    (points,) = _resampled(values[None], np.array([len(values)]), how, bins)
    return np.asarray(points, np.float64)


def _resampled(rows: Values, lengths: NDArray[np.int64], how: Resampling, bins: int) -> Values:
    """`resample` for several documents' scores [N, longest], each padded with zeros: [N, bins]."""
    if not lengths.all():
        raise ValueError("no tokens to resample")
    if how == "point":
        return _interpolated(rows, lengths, how, bins)
    filled = np.zeros((len(rows), rows.shape[1] + 1))
    np.cumsum(rows, axis=1, out=filled[:, 1:])
    return np.diff(_interpolated(filled, lengths, how, bins), axis=1) * bins / lengths[:, None]


def _interpolated(values: Values, lengths: NDArray[np.int64], how: Resampling, bins: int) -> Values:
    """Bitwise the same as numpy.interp of each row at a curve's points."""
    plans = [_places(n, how, bins) for n in lengths.tolist()]
    low = np.take_along_axis(values, np.stack([plan[0] for plan in plans]), 1)
    high = np.take_along_axis(values, np.stack([plan[1] for plan in plans]), 1)
    widths, past = np.stack([plan[2] for plan in plans]), np.stack([plan[3] for plan in plans])
    curves: Values = (high - low) / widths * past + low
    return curves


@lru_cache(maxsize=1024)
def _places(
    n: int, how: Resampling, bins: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Values, Values]:
    """Where the points of a curve are among n tokens: the indices of the left and right neighbors,
    their distance, and the point's distance from the left one."""
    points = np.linspace(0, 1, bins if how == "point" else bins + 1)
    values = np.linspace(0, 1, n) if how == "point" else np.arange(n + 1) / n
    left = np.searchsorted(values, points, "right") - 1
    right = np.minimum(left + 1, len(values) - 1)
    width = values[right] - values[left]
    return left, right, np.where(width == 0, 1.0, width), points - values[left]


CURVE_VERSION = 1
"""Part of the key of every stored curve: raise it when `document_curve` or `document_magnitudes`
return other numbers. Per-token results stay valid, and curves are recomputed from them."""


def curve_params(
    normalization: str = NORMALIZATIONS[0], resampling: str = RESAMPLINGS[0]
) -> dict[str, Any]:
    """The parameters of curves, which are not parameters of token scores: `Method.curve_params`."""
    return {
        "normalization": normalization,
        "resampling": resampling,
        "curve_version": CURVE_VERSION,
    }


def document_curve(attribution: Attribution, method: Method | None = None) -> Array:
    """One document's curve [100] under `method`'s normalization and resampling.

    Special tokens are excluded; positions are relative to what the model read.
    """
    curves = score_curves([content_scores(attribution)], method or attribution.method)
    return as_array(curves[0], (N_BINS,), "a curve")


def document_magnitudes(attribution: Attribution, method: Method | None = None) -> Array:
    """One document's curve [100] of absolute scores, normalized and resampled in the same way.

    In a curve of signed scores, values in one bin cancel, and so do those of different documents in
    a mean curve; magnitudes do not. For unsigned scores it equals `document_curve`.
    """
    scores = np.abs(content_scores(attribution))
    curves = score_curves([scores], method or attribution.method)
    return as_array(curves[0], (N_BINS,), "a curve")


def content_scores(attribution: Attribution) -> NDArray[np.float32]:
    """Scores of the document's text tokens [D], without special tokens."""
    return attribution.document_scores[attribution.document.content]


def score_curves(scores: Sequence[NDArray[np.floating]], method: Method) -> Array:
    """Curves [N, 100] of documents' scores, each [D]."""
    params, lengths = method.curve_params, np.array([len(score) for score in scores], np.int64)
    curves = np.zeros((len(scores), N_BINS))
    # Documents of similar length together, because rows are padded to the longest.
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), _TOGETHER):
        part = order[start : start + _TOGETHER]
        rows = np.zeros((len(part), int(lengths[part[-1]])))
        for row, place in zip(rows, part.tolist(), strict=True):
            row[: lengths[place]] = scores[place]
        rows = _normalized(rows, lengths[part], params["normalization"])
        curves[part] = _resampled(rows, lengths[part], params["resampling"], N_BINS)
    return as_array(curves, (None, N_BINS), "a curve")


def token_range(document: TokenizedText, span: EvidenceSpan) -> tuple[float, float] | None:
    """The span as relative token positions [from, to) of what was read; None if it was not read."""
    covered = inside(document, span)[document.content]
    at = np.flatnonzero(covered)
    return (int(at[0]) / len(covered), (int(at[-1]) + 1) / len(covered)) if len(at) else None


@dataclass(frozen=True, slots=True)
class EvidenceShare:
    """How much of the attribution is inside the evidence.

    `share` is the evidence's share of |attribution| over the document's text tokens, `token_share`
    its share of those tokens, and `enrichment` the ratio of the two; it is 1 for a uniform
    attribution.
    """

    share: float
    token_share: float

    @property
    def enrichment(self) -> float:
        """Share of attribution over share of tokens."""
        return self.share / self.token_share


def evidence_share(attribution: Attribution, span: EvidenceSpan) -> EvidenceShare | None:
    """Share of |attribution| inside the evidence; None if the model read none of the evidence."""
    content = attribution.document.content
    magnitude = np.abs(attribution.document_scores[content]).astype(np.float64)
    covered = inside(attribution.document, span)[content]
    total = float(magnitude.sum())
    if not covered.any() or total == 0.0:
        return None
    return EvidenceShare(float(magnitude[covered].sum()) / total, float(covered.mean()))


def aggregated(
    scores: NDArray[np.floating], unit_of: NDArray[np.int64], n: int, how: Aggregate
) -> Values:
    """Scores of units [n] from token scores [T]; NaN for a unit without tokens.

    `unit_of` [T] is each token's unit, -1 for none. `max` is the score of largest magnitude with
    its sign; of equal magnitudes the first.
    """
    has_unit = unit_of >= 0
    values, units = np.asarray(scores, dtype=np.float64)[has_unit], unit_of[has_unit]
    counts = np.bincount(units, minlength=n)
    numbers = np.zeros(n)
    if how == "max":
        rising = np.lexsort((-np.arange(len(values)), np.abs(values)))
        numbers[units[rising]] = values[rising]  # the last assignment wins
    else:
        np.add.at(numbers, units, values)
        if how == "mean":
            numbers /= np.maximum(counts, 1)
    return np.where(counts > 0, numbers, np.nan)


def unit_scores(
    tokenized: TokenizedText, scores: Array, spans: Sequence[tuple[int, int]], how: Aggregate
) -> Values:
    """Score of each unit from the scores of its tokens [len(spans)]; NaN where no token was read.

    `spans` are all `words` or all `sentences` of the text, and tokens belong to them as in
    `unit_of`, so sums over units add up to the sum over the text's tokens. Sum shares of a score,
    but not norms such as saliency, whose sum grows with the number of tokens;
    `MethodEntry.aggregate` is the suitable choice for each method.
    """
    return aggregated(scores, unit_of(tokenized, spans), len(spans), how)


def word_span_scores(tokenized: TokenizedText, scores: Array, text: str, how: Aggregate) -> Values:
    """As `unit_scores`, for the `word_spans` of a text: tokens of punctuation marks, and of the
    white space before them, count for no word, unless they reach into one ("°C")."""
    spans, every = word_spans(text), words(text)
    units = unit_of(tokenized, spans)
    # -1 selects the last row.
    starts, ends = np.array([*spans, (0, 0)])[units].T
    own, _ = np.array([*every, (0, 0)])[unit_of(tokenized, every)].T
    reaches = (tokenized.starts < ends) & (tokenized.ends > starts)
    units = np.where(reaches | (own == starts), units, -1)
    return aggregated(scores, units, len(spans), how)


def rank_correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float | None:
    """Spearman's rank correlation over the units that both models read; None for fewer than 3 units
    or if one side is constant."""
    both = np.isfinite(a) & np.isfinite(b)
    x, y = a[both], b[both]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(rank_correlations(x[None], y[None])[0])


def rank_correlations(a: NDArray[np.floating], b: NDArray[np.floating]) -> Values:
    """Spearman's rank correlation of each row [R] of a and b [R, K], which must be finite; NaN if a
    side is constant. Same as scipy's `spearmanr`, which takes half a millisecond for each row."""
    import pandas as pd  # here: few calls need it; scipy.stats takes a second to import

    ranks = (pd.DataFrame(side).rank(axis=1).to_numpy() for side in (a, b))
    x, y = (of_row - of_row.mean(1, keepdims=True) for of_row in ranks)
    lengths = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return divided((x * y).sum(1), lengths)


BANDS = ("95% interval of the mean", "standard deviation", "quartiles")
"""What a curve's band can show: the interval of the mean, or the spread over pairs."""


def band(curve: PositionCurve, kind: str) -> tuple[Array, Array] | None:
    """Lower and upper edge [100] of a band of `BANDS`; None if the curve does not have it."""
    if kind == "standard deviation":
        return curve.mean - curve.std, curve.mean + curve.std
    if kind == "quartiles":
        return None if curve.quartiles is None else (curve.quartiles[0], curve.quartiles[2])
    return None if curve.ci_low is None or curve.ci_high is None else (curve.ci_low, curve.ci_high)
