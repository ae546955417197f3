"""The pairs of a data set that a page's filters select.

Facet values are counted once per data set and selections are cached, because a page needs them at
every rerun, even for hundreds of thousands of pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress

import numpy as np

from poslens.attribution.curves.positions import length_bucket
from poslens.attribution.datasets import DataSet, posir_selection
from poslens.attribution.types import Pairs, TextPair
from poslens.cache.lru_cache import LRUCache

ANY = "any"
ANYWHERE = (0, 100)


def bucket_of(pair: TextPair) -> str:
    """The length bucket of a document by the data set's token counts; empty without them."""
    return length_bucket(pair.document_tokens) if pair.document_tokens else ""


def evidence_position(pair: TextPair) -> float | None:
    """Midpoint of the evidence, as a share of the document's characters; None without evidence."""
    if pair.evidence is None:
        return None
    return (pair.evidence.start + pair.evidence.end) / 2 / len(pair.document)


FACETS: Mapping[str, Callable[[TextPair], str | None]] = {
    "domain": lambda pair: pair.domain,
    "language": lambda pair: pair.language,
    "bucket": bucket_of,
    "query_type": lambda pair: pair.query_type,
}
"""The properties by which pairs can be filtered: name, and the function that returns a pair's
value."""


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
    pairs: tuple[TextPair, ...]
    words: str

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Index of each pair in the selection, by its id."""
        return {pair.pair_id: at for at, pair in enumerate(self.pairs)}

    @cached_property
    def posir(self) -> Selection:
        """The pairs of this selection that the PosIR protocol includes; the same object at every
        rerun."""
        words = ", ".join(filter(None, (self.words, "PosIR protocol")))
        return Selection(self.data, Pairs(filter(posir_selection, self.pairs)), words)

    def of(self, pairs: tuple[TextPair, ...]) -> Selection:
        """The same selection restricted to these pairs, in their order."""
        return self if pairs is self.pairs else replace(self, pairs=pairs)


class Facets:
    """The pairs of one data set and their values of each facet."""

    def __init__(self, data: DataSet) -> None:
        self.data = data
        self._columns = {
            name: np.array([of(pair) or "" for pair in data.pairs], dtype=object)
            for name, of in FACETS.items()
        }
        self.counts: Mapping[str, Counter[str]] = {
            name: Counter(filter(None, column)) for name, column in self._columns.items()
        }
        """How many pairs have each value, by facet."""
        positions = (evidence_position(pair) for pair in data.pairs)
        self._positions = np.array([np.nan if at is None else 100 * at for at in positions])
        self._selections: LRUCache[Selection] = LRUCache(
            8 + 3 * len(data.pairs), weigh=lambda selection: 1 + len(selection.pairs)
        )

    def select(self, filters: Filters) -> Selection:
        """The pairs that pass the filters, in the data set's order."""
        return self._selections.get(filters, lambda: self._select(filters))

    def _select(self, filters: Filters) -> Selection:
        keep = np.ones(len(self.data.pairs), dtype=np.bool_)
        for name, value in filters.facets:
            if value != ANY:
                keep &= self._columns[name] == value
        if filters.evidence != ANYWHERE:
            low, high = filters.evidence
            keep &= (low <= self._positions) & (self._positions <= high)
        pairs = self.data.pairs
        if not keep.all():
            pairs = Pairs(compress(pairs, keep.tolist()))
        if needles := filters.search.casefold().split():
            pairs = Pairs(pair for pair in pairs if _holds(pair, needles))
        return Selection(self.data, pairs, str(filters))


def _holds(pair: TextPair, needles: Sequence[str]) -> bool:
    words = f"{pair.pair_id} {pair.query} {pair.document}".casefold()
    return all(needle in words for needle in needles)


_facets: LRUCache[Facets] = LRUCache(4)


def facets(data: DataSet) -> Facets:
    """The facets of a data set, counted once."""
    return _facets.get(data.digest, lambda: Facets(data))
