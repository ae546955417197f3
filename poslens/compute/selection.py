"""The pairs of a data set that a page's filters select, and their order by stored results.

Facet values are counted once per data set and selections are cached, because a page needs them at
every rerun, even for hundreds of thousands of pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.curve_summary import center_of_mass
from poslens.attribution.curves.positions import BUCKET_EDGES, LENGTH_BUCKETS
from poslens.attribution.curves.text_axis import over_text
from poslens.attribution.datasets import DataSet, posir_selection
from poslens.attribution.nouns import counted
from poslens.attribution.pairs import LabelName, Labels, Pairs
from poslens.attribution.types import N_BINS, Array, Method, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.store import ModelKey, Store, StoredCurves

ANY = "any"
ANYWHERE = (0, 100)


def evidence_position(pair: TextPair) -> float | None:
    """Midpoint of the evidence, as a share of the document's characters; None without evidence."""
    if pair.evidence is None:
        return None
    return pair.evidence.midpoint(len(pair.document))


@dataclass(frozen=True, slots=True)
class ComputedSoFar:
    """How many results of an incomplete selection are computed, and what they are called."""

    done: int
    total: int
    unit: str

    def __str__(self) -> str:
        return f"{self.done:,} of {counted(self.total, self.unit)} so far"

    def of(self, selection: str) -> str:
        """The selection as text, with how much of it is computed."""
        return ", ".join(filter(None, (selection, str(self))))


FACETS = ("domain", "language", "bucket", "query_type")
"""The properties by which pairs can be filtered."""


def facet_labels(pairs: Pairs, name: str) -> Labels:
    """The values of a facet as a column."""
    if name != "bucket":
        return pairs.labels(cast(LabelName, name))
    tokens = pairs.document_tokens
    buckets = np.searchsorted(BUCKET_EDGES, tokens).astype(np.int8)
    return Labels(np.where(tokens > 0, buckets, np.int8(-1)), LENGTH_BUCKETS)


@dataclass(frozen=True)
class Filters:
    """The filters of a page: a value of each facet or ANY, a range of evidence positions in percent
    of the document, and words that must all occur in the pair's id or texts."""

    facets: tuple[tuple[str, str], ...] = ()
    evidence: tuple[int, int] = ANYWHERE
    search: str = ""

    def __str__(self) -> str:
        """The filters as text for captions; empty if every pair passes."""
        parts = [f"{name.replace('_', ' ')} {value}" for name, value in self.facets if value != ANY]
        if self.evidence != ANYWHERE:
            parts.append(f"evidence {self.evidence[0]}-{self.evidence[1]}%")
        if words := self.search.casefold().split():
            parts.append(f"search {' '.join(words)!r}")
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Selection:
    """The pairs that pass the filters, and the filters as text for captions (`words`)."""

    data: DataSet
    pairs: Pairs
    words: str

    @cached_property
    def posir(self) -> Selection:
        """The pairs of this selection that the PosIR protocol includes; the same object at every
        rerun."""
        words = ", ".join(filter(None, (self.words, "PosIR protocol")))
        return Selection(self.data, posir_selection(self.pairs), words)

    def of(self, pairs: Pairs) -> Selection:
        """The same selection restricted to these pairs, in their order."""
        return self if pairs is self.pairs else replace(self, pairs=pairs)


class Facets:
    """The pairs of one data set and their values of each facet."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self._columns = {name: facet_labels(data.pairs, name) for name in FACETS}
        self.counts: Mapping[str, Counter[str]] = {
            name: _counted(column) for name, column in self._columns.items()
        }
        """How many pairs have each value, by facet."""
        self._selections: LRUCache[Selection] = LRUCache(
            8 + 3 * len(data.pairs), weigh=lambda selection: 1 + len(selection.pairs)
        )

    def select(self, filters: Filters) -> Selection:
        """The pairs that pass the filters, in the data set's order."""
        return self._selections.get(filters, lambda: self._select(filters))

    def _select(self, filters: Filters) -> Selection:
        pairs = self.data.pairs
        keep = np.ones(len(pairs), dtype=np.bool_)
        for name, value in filters.facets:
            if value != ANY:
                codes, values = self._columns[name]
                keep &= codes == values.index(value) if value in values else False
        if filters.evidence != ANYWHERE:
            low, high = filters.evidence
            positions = 100 * pairs.evidence_positions
            keep &= (low <= positions) & (positions <= high)
        if not keep.all():
            pairs = pairs.select(keep)
        if words := filters.search.split():
            pairs = pairs.select(pairs.containing(words))
        return Selection(self.data, pairs, str(filters))


def _counted(column: Labels) -> Counter[str]:
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.values)).tolist()
    pairs_of = zip(column.values, counts, strict=True)
    return Counter({value: n for value, n in pairs_of if n and value})


_facets: LRUCache[Facets] = LRUCache(4)


def facets(data: DataSet) -> Facets:
    """The facets of a data set, counted once."""
    return _facets.get(data.digest, lambda: Facets(data))


# -- orders ----------------------------------------------------------------------------------------

AS_GIVEN = "data set"
SHUFFLED = "random"
ORDERS = (AS_GIVEN, "score", "center of mass", "smallest evidence share", "disagreement", SHUFFLED)
HELP = (
    "Score and center of mass sort from high to low. Smallest evidence share: pairs whose "
    "evidence gets the least of the curve for its length (only documents read in full). "
    "Disagreement: distance between the curves of the first two models, 0 to 1 (only documents of "
    "which both read the same part). Pairs without results come last; Curves computes them."
)


def arrange(
    pairs: Pairs,
    order: str,
    stored: Callable[[int], StoredCurves | None],
    unlike: Callable[[StoredCurves, StoredCurves], Set[str]],
) -> tuple[Pairs, Mapping[str, float]]:
    """The pairs in the order of this name, one of `ORDERS`, and the value they are sorted by, by
    pair id. Pairs without a value come last.

    `stored(i)` returns the stored results of the i-th selected model, and `unlike` the ids of the
    pairs whose documents the first two read differently (`pairs_read_unlike`). Both are called only
    for orders that need them.
    """
    if order == AS_GIVEN:
        return pairs, {}
    if order == SHUFFLED:
        return pairs.select(np.random.default_rng(0).permutation(len(pairs))), {}
    # A curve of zeros has no center of mass and no shares.
    values = {
        pair_id: value
        for pair_id, value in _values(pairs, order, stored, unlike).items()
        if np.isfinite(value)
    }
    sign = 1 if order == "smallest evidence share" else -1
    ranks = np.array([sign * values.get(pair_id, sign * np.inf) for pair_id in pairs.ids])
    return pairs.select(np.argsort(ranks, kind="stable")), values


def _values(
    pairs: Sequence[TextPair],
    order: str,
    stored: Callable[[int], StoredCurves | None],
    unlike: Callable[[StoredCurves, StoredCurves], Set[str]],
) -> dict[str, float]:
    first = stored(0)
    if first is None:
        return {}
    values: NDArray[np.floating] = np.full(len(first.pair_ids), np.nan)
    if order == "score":
        values = first.scores
    elif order == "center of mass":
        values = center_of_mass(first.magnitudes, first.positions)
    elif order == "disagreement":
        if (second := stored(1)) is not None:
            both, others = first.rows_of_both(second)
            values[both] = apart(first.magnitudes[both], second.magnitudes[others])
            left_out = unlike(first, second)
            values[[pair_id in left_out for pair_id in first.pair_ids]] = np.nan
    else:
        by_id = {pair.pair_id: pair for pair in pairs}
        shares = _shares(first.magnitudes)
        # For a truncated document the curve covers the text that was read, the evidence span the
        # whole text.
        for row in np.flatnonzero(first.truncated == 0).tolist():
            pair = by_id[first.pair_ids[row]]
            if (span := pair.evidence) is not None:
                length = len(pair.document)
                values[row] = in_span(shares[row], span.start / length, span.end / length)
    return dict(zip(first.pair_ids, values.tolist(), strict=True))


def pairs_read_unlike(
    store: Store,
    models: tuple[ModelKey, ModelKey],
    method: Method,
    pairs: Pairs,
    curves: tuple[StoredCurves, StoredCurves],
) -> frozenset[str]:
    """The ids of the pairs, among those of which both models have `curves`, of whose documents they
    read different parts, to a hundredth of the characters. Their relative positions are not
    comparable."""
    first, second = curves
    both, others = first.rows_of_both(second)
    ids = np.array(first.pair_ids, dtype=object)[both]
    truncated = set(ids[np.logical_or(first.truncated[both], second.truncated[others])].tolist())
    if not truncated:
        return frozenset()
    asked = pairs.select(np.fromiter((i in truncated for i in pairs.ids), np.bool_, len(pairs)))
    a, b = (store.curves(model, over_text(method), asked) for model in models)
    both, others = a.rows_of_both(b)
    alike = (np.isfinite(a.curves[both]) == np.isfinite(b.curves[others])).all(-1)
    return frozenset(truncated.difference(a.pair_ids[row] for row in both[alike].tolist()))


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
