"""Curves over the whole text: positions as shares of the text's characters.

Curves usually cover the tokens that a model read, evidence is given in characters, and two models
can read different parts of a text. This module converts shares of the text to token positions.

With `axis=text` in a method's `curve_params`, curves cover the whole text: a bin is a hundredth of
the characters, and its value is the mean of its tokens, or NaN where nothing was read. Without it,
curves cover what was read, as in PosIR.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Values, intervals, numbered, ratios
from poslens.attribution.curves.curve_summary import nothing_stored
from poslens.attribution.curves.positions import (
    content_scores,
    document_curve,
    document_magnitudes,
    normalize,
    positions,
)
from poslens.attribution.types import (
    N_BINS,
    Array,
    Attribution,
    Method,
    PositionCurve,
    TokenizedText,
)

_AXIS, _TEXT = "axis", "text"


def over_text(method: Method) -> Method:
    """The method with curves over the whole text."""
    return Method(method.name, method.params, {**method.curve_params, _AXIS: _TEXT})


def is_over_text(method: Method) -> bool:
    """Whether the method's curves cover the whole text rather than what was read."""
    return method.curve_params.get(_AXIS) == _TEXT


def curves_of(attribution: Attribution, method: Method, n_characters: int) -> tuple[Array, Array]:
    """A document's curve [100] and the curve of its magnitudes [100] on the axis of `method`, as
    stored and averaged; the document has `n_characters`."""
    if not is_over_text(method):
        return document_curve(attribution, method), document_magnitudes(attribution, method)
    scores = content_scores(attribution)
    curve, magnitudes = (
        _over_text(attribution.document, values, method, n_characters).astype(np.float32)
        for values in (scores, np.abs(scores))
    )
    return curve, magnitudes


def average(
    curves: NDArray[np.floating],
    groups: Sequence[Hashable],
    *,
    model: str,
    dataset: str,
    method: Method,
    n_truncated: int,
    n_failed: int,
) -> PositionCurve:
    """Average curves over whole texts [n, 100], each bin over the pairs read there, with intervals
    that resample documents (seeded) as in `curve_summary.summarize`; `groups` [n] identifies the
    rows' documents.

    A bin is NaN if the pairs read there have fewer than MIN_DOCUMENTS documents; with fewer
    documents in total, if the pairs read there do not include all of them. There is no center of
    mass and no index, because they would depend on how much of the texts was read.

    Raises:
        UserError: there are no curves to average.
    """
    rows = np.asarray(curves)
    n = len(rows)
    if n == 0:
        raise nothing_stored(model)
    document_of = numbered(groups)
    n_documents = int(document_of.max()) + 1
    counts, drawn = np.zeros(N_BINS, np.int64), np.zeros(N_BINS, np.bool_)
    mean, std = np.full((2, N_BINS), np.nan)
    quartiles = np.full((3, N_BINS), np.nan)
    for k in range(N_BINS):  # one at a time: a float64 copy of all would double the memory
        read = np.isfinite(rows[:, k])
        values = rows[read, k].astype(np.float64)
        counts[k] = len(values)
        documents_read = np.count_nonzero(np.bincount(document_of[read]))
        drawn[k] = documents_read >= min(MIN_DOCUMENTS, n_documents)
        if drawn[k]:
            mean[k], quartiles[:, k] = values.mean(), np.percentile(values, [25, 50, 75])
            std[k] = values.std(ddof=1) if len(values) > 1 else 0.0
    low = high = None
    if n_documents >= MIN_DOCUMENTS:

        def read_there(some: Values) -> Values:
            # The mean over the pairs read there is a ratio of two means over all pairs. A draw can
            # contain no pair read there: one in 20,000 with 10 of 50 documents.
            values = some[:, drawn]
            read = np.isfinite(values)
            return np.concatenate([np.where(read, values, 0.0), read], axis=1)

        interval = intervals(rows, groups, ratios, of=read_there)
        assert interval is not None  # there are enough documents
        low, high = np.full((2, N_BINS), np.nan)
        low[drawn], high[drawn] = interval
    return PositionCurve(
        model=model,
        dataset=dataset,
        method=method,
        positions=positions(method.curve_params["resampling"]),
        mean=mean,
        std=std,
        ci_low=low,
        ci_high=high,
        n=n,
        n_documents=n_documents,
        n_truncated=n_truncated,
        n_failed=n_failed,
        quartiles=quartiles,
        n_read=counts,
    )


def curve_over_text(attribution: Attribution, n_characters: int) -> Values:
    """A document's curve over its whole text [100]; NaN where nothing was read. Curves of models
    that read different parts can therefore be subtracted."""
    scores = content_scores(attribution)
    return _over_text(attribution.document, scores, attribution.method, n_characters)


def _over_text(document: TokenizedText, scores: Array, method: Method, n_characters: int) -> Values:
    params = method.curve_params
    values = normalize(scores, params["normalization"])
    n = len(values)
    if params["resampling"] == "point":
        at = token_shares(document, n_characters, positions("point"))
        return np.interp(at, np.linspace(0, 1, n), values)
    # As in `positions.resample`, between the bin's edges among the tokens.
    edges = np.linspace(0, 1, N_BINS + 1)
    read = document.share_read(n_characters)
    at = token_shares(document, n_characters, np.minimum(edges, read))
    at[0] = 0.0  # also if several tokens start at the beginning of the text
    filled = np.concatenate(([0.0], np.cumsum(values)))
    sums = np.diff(np.interp(at, np.arange(n + 1) / n, filled))
    widths = np.diff(at) * n
    centers = (np.arange(N_BINS) + 0.5) / N_BINS
    curve: Values = np.divide(sums, widths, out=np.full(N_BINS, np.nan), where=centers <= read)
    return curve


def token_shares(document: TokenizedText, n_characters: int, at: ArrayLike) -> Values:
    """Convert shares `at` [n] of the text's characters to relative positions [n] among the tokens
    read; NaN past the last character read. The characters of token j of D are mapped linearly to
    [j/D, (j+1)/D).

    Raises:
        ValueError: nothing was read.
    """
    read = document.starts[document.content]
    if not len(read) or n_characters < 1:
        raise ValueError("no token was read of this text")
    end = document.share_read(n_characters)
    # Starts of the tokens and end of the last one, as shares of what was read and of the text. The
    # first token includes what precedes it; tokens that share characters have the same position.
    tokens = np.arange(len(read) + 1) / len(read)
    starts = np.maximum.accumulate(np.concatenate(([0.0], read[1:]))) / n_characters
    text = np.append(np.minimum(starts, end), end)
    asked = np.asarray(at, dtype=np.float64)
    return np.where(asked > text[-1], np.nan, np.interp(asked, text, tokens))
