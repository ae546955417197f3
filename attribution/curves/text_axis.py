"""One axis for curves, evidence and what was not read: shares of the whole text's characters.

A curve stands over the tokens that a model read, the evidence over characters, and two models may
read different parts of a text. Here token positions become shares of the text and back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attribution.curves.positions import document_curve, positions
from attribution.types import N_BINS, Attribution, TokenizedText

Floats = NDArray[np.float64]


def _knots(document: TokenizedText, n_characters: int) -> tuple[Floats, Floats]:
    """Where tokens begin, and the last one ends: as shares of what was read [D + 1], and as shares
    of the text's characters [D + 1]. Neither falls: tokens that share characters share a place."""
    read = [token for token in document.tokens if not token.is_special]
    if not read or n_characters < 1:
        raise ValueError("no token was read of this text")
    at = np.array([*(token.start for token in read), document.read_until], dtype=np.float64)
    edges = np.minimum(np.maximum.accumulate(at), document.read_until) / n_characters
    return np.arange(len(read) + 1) / len(read), edges


def text_shares(document: TokenizedText, n_characters: int, at: ArrayLike) -> Floats:
    """Relative token positions `at` [n] of what was read, in [0, 1], as shares of the characters of
    the whole text [n]. Linear within a token: token j of D fills [j/D, (j+1)/D) there and its
    characters here.

    Raises:
        ValueError: nothing was read.
    """
    tokens, text = _knots(document, n_characters)
    return np.interp(np.asarray(at, dtype=np.float64), tokens, text)


def token_shares(document: TokenizedText, n_characters: int, at: ArrayLike) -> Floats:
    """And back: shares `at` [n] of the text's characters as relative token positions [n]; NaN
    behind the last character that was read.

    Raises:
        ValueError: nothing was read.
    """
    tokens, text = _knots(document, n_characters)
    asked = np.asarray(at, dtype=np.float64)
    return np.where(asked > text[-1], np.nan, np.interp(asked, text, tokens))


def curve_positions(attribution: Attribution, n_characters: int) -> Floats:
    """Where the points of a document's curve stand in its whole text [100]."""
    how = attribution.method.curve_params["resampling"]
    return text_shares(attribution.document, n_characters, positions(how))


def curve_over_text(attribution: Attribution, n_characters: int) -> Floats:
    """A document's curve at 100 evenly spaced places (b + 0.5)/100 of its whole text; NaN where
    nothing was read. So the curves of models that read different parts can be subtracted."""
    x = curve_positions(attribution, n_characters)
    at = (np.arange(N_BINS) + 0.5) / N_BINS
    read = attribution.document.read_until / n_characters
    return np.where(at > read, np.nan, np.interp(at, x, document_curve(attribution)))
