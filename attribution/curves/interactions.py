"""The query-token x document-token matrix at coarser levels: words, sentences, position bins.

Shares are sums, so every level adds up to the same total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.text import overlapping, sentences, unit_of, words
from poslens.attribution.types import Array, Attribution, TextPair, TokenizedText, as_array

RowLevel = Literal["word", "token"]
ColumnLevel = Literal["word", "token", "sentence", "bin"]
COLUMN_BINS = 50
_MAX_LABEL = 60


@dataclass(frozen=True, slots=True)
class Interactions:
    """A matrix [rows, columns] of shares of the score, with labels.

    `special` is the sum of shares of special tokens, and `total` the sum of all shares;
    `evidence_columns` are the columns that overlap the evidence.
    """

    matrix: Array
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    evidence_columns: tuple[int, ...]
    special: float
    total: float


@dataclass(frozen=True, slots=True)
class _Units:
    labels: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    unit_of: NDArray[np.int64]  # per token; -1 for special tokens


def _token_units(tokenized: TokenizedText, text: str) -> _Units:
    content = [t for t in tokenized.tokens if not t.is_special]
    return _Units(
        tuple(text[t.start : t.end] or t.text for t in content),
        tuple((t.start, t.end) for t in content),
        _ranks(tokenized),
    )


def _ranks(tokenized: TokenizedText) -> NDArray[np.int64]:
    """Each token's index among the tokens that are not special [T]; -1 for special ones."""
    return np.where(tokenized.content, np.cumsum(tokenized.content) - 1, -1)


def _span_units(tokenized: TokenizedText, text: str, spans: Sequence[tuple[int, int]]) -> _Units:
    read = tokenized.read_until
    units = [span for span in spans if span[0] < read] or list(spans[:1])
    labels = []
    for start, end in units:
        label = " ".join(text[start:end].split())
        labels.append(label if len(label) <= _MAX_LABEL else label[: _MAX_LABEL - 1] + "…")
    return _Units(tuple(labels), tuple(units), unit_of(tokenized, units))


def _bin_units(tokenized: TokenizedText, bins: int) -> _Units:
    n_read = int(tokenized.content.sum())
    n = min(bins, n_read)
    bin_of = np.where(tokenized.content, _ranks(tokenized) * n // max(n_read, 1), -1)
    spans, labels = [], []
    for b in range(n):
        inside = np.flatnonzero(bin_of == b)
        spans.append((int(tokenized.starts[inside[0]]), int(tokenized.ends[inside[-1]])))
        labels.append(f"{100 * b / n:.0f}-{100 * (b + 1) / n:.0f}%")
    return _Units(tuple(labels), tuple(spans), bin_of)


def _units(tokenized: TokenizedText, text: str, level: str, language: str | None) -> _Units:
    if level == "token":
        return _token_units(tokenized, text)
    if level == "bin":
        return _bin_units(tokenized, COLUMN_BINS)
    spans = words(text) if level == "word" else sentences(text, language)
    return _span_units(tokenized, text, spans)


def interactions(
    attribution: Attribution, pair: TextPair, rows: RowLevel, columns: ColumnLevel
) -> Interactions:
    """Sum the attribution's matrix over the requested units.

    Raises:
        ValueError: the attribution has no matrix.
    """
    if attribution.matrix is None:
        raise ValueError("this attribution has no matrix")
    of_query = _units(attribution.query, pair.query, rows, pair.language)
    of_document = _units(attribution.document, pair.document, columns, pair.language)
    full = attribution.matrix.astype(np.float64)
    left = np.equal.outer(np.arange(len(of_query.labels)), of_query.unit_of)
    right = np.equal.outer(of_document.unit_of, np.arange(len(of_document.labels)))
    summed = left @ full @ right
    span = pair.evidence
    evidence = () if span is None else tuple(overlapping(of_document.spans, span))
    total = float(full.sum())
    return Interactions(
        as_array(summed, summed.shape, "a matrix"),
        of_query.labels,
        of_document.labels,
        evidence,
        total - float(summed.sum()),
        total,
    )
