"""The pairs of a data set that a page's filters select.

Facet values are counted once per data set and selections are cached, because a page needs them at
every rerun, even for hundreds of thousands of pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from poslens.attribution.curves.positions import BUCKET_EDGES, LENGTH_BUCKETS
from poslens.attribution.datasets import DataSet, posir_selection
from poslens.attribution.pairs import LabelName, Labels, Pairs
from poslens.attribution.types import TextPair
from poslens.cache.lru_cache import LRUCache

ANY = "any"
ANYWHERE = (0, 100)


def evidence_position(pair: TextPair) -> float | None:
    """Midpoint of the evidence, as a share of the document's characters; None without evidence."""
    if pair.evidence is None:
        return None
    return pair.evidence.midpoint(len(pair.document))


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
