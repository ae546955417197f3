"""The subject and the result of the study `hubs`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.datasets import Collection
from poslens.attribution.datasets.corpus import Query
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.hubs import MOST_TOP, InDegrees, in_degrees
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.studies.ranking.service import RankingSetup, stored_rankings

LISTED = 50
"""Maximum number of documents in the table of hubs."""


@dataclass(frozen=True)
class HubCorpus:
    """A corpus with its queries, and the control: the same corpus with each document's words in
    random order."""

    collection: Collection
    control: Collection


@dataclass(frozen=True)
class HubIndex:
    """The subject for one model: in-degrees for k = `top`, and the words of the first `explained`
    hubs."""

    spec: RetrieverSpec
    corpus: HubCorpus
    top: int
    explained: int

    @property
    def method(self) -> Method:
        """The measure, as named in captions."""
        return Method("hubs", {"top": self.top, "version": 1})


@dataclass(frozen=True)
class HubWord:
    """A word of a hub, with its share of the score summed over its occurrences: the mean over some
    queries that retrieve the hub, and over as many that do not."""

    word: str
    occurrences: int
    retrieving: Estimate
    others: Estimate | None


@dataclass(frozen=True)
class HubSummary:
    """The in-degrees of a model's index and of the control, over the documents `ids` [D].
    `comparison` is the difference of their skewness. `words` are the words of the first hubs, by
    document, attributed by `words_method`."""

    asked: HubIndex
    model: ModelIdentity
    ids: tuple[str, ...]
    original: InDegrees
    control: InDegrees
    comparison: Comparison | None
    words: dict[str, tuple[HubWord, ...]]
    words_method: Method | None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.asked.spec.name

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries, in the order of the in-degrees."""
        return self.asked.corpus.collection.queries

    @cached_property
    def hubs(self) -> list[int]:
        """Indices of the retrieved documents in descending order of in-degree; ties are in
        corpus order."""
        counts = self.original.counts
        order = np.argsort(-counts, kind="stable")
        return [int(number) for number in order[:LISTED] if counts[number]]

    def others(self, number: int) -> list[int]:
        """Rows of the queries that the document with this number does not answer."""
        key = self.ids[number]
        return [row for row, query in enumerate(self.queries) if key not in query.relevant]

    def retrieving(self, number: int) -> list[int]:
        """Rows of the queries that have the document with this number in their top k although it
        does not answer them."""
        return [row for row, top in enumerate(self.original.tops) if number in top]

    def share(self, number: int) -> Estimate | None:
        """Share of queries that retrieve the document with this number, among those that it does
        not answer."""
        asked, tops = self.others(number), self.original.tops
        rows = np.array([number in tops[row] for row in asked], dtype=np.float64)
        return estimate(rows[:, None], [self.queries[row].document for row in asked])


_degrees: LRUCache[InDegrees] = LRUCache(32)
_ids: LRUCache[tuple[str, ...]] = LRUCache(8)


def document_ids(collection: Collection) -> tuple[str, ...]:
    """The ids of all documents, in corpus order.

    Raises:
        UserError: the corpus cannot be read.
    """
    return _ids.get(
        collection.digest, lambda: tuple(document.key for document in collection.documents())
    )


def degrees(
    compute: Compute, spec: RetrieverSpec, collection: Collection, top: int
) -> InDegrees | None:
    """The in-degrees of a corpus's documents from stored rankings; None while any is missing.

    Raises:
        UserError: the corpus cannot be read, or the model has no ranking of the whole corpus.
    """
    key = (str(compute.root), compute.identify(spec).key, spec.name, collection.digest, top)
    if (cached := _degrees.find(key)) is not None:
        return cached
    rankings = stored_rankings(compute, spec, RankingSetup(collection))
    if rankings is None:
        return None
    ids = document_ids(collection)
    return _degrees.keep(key, in_degrees(rankings, collection.queries, ids, top))


def known_in_degrees(
    compute: Compute, spec: RetrieverSpec, collection: Collection, top: int
) -> dict[str, int]:
    """The in-degree of each document by id, from stored rankings; empty if any is missing, if
    there are no queries, or if k exceeds the length of rankings.

    Raises:
        UserError: the corpus cannot be read, or the model has no ranking of the whole corpus.
    """
    if not collection.queries or top > MOST_TOP:
        return {}
    in_degrees = degrees(compute, spec, collection, top)
    if in_degrees is None:
        return {}
    return dict(zip(document_ids(collection), in_degrees.counts.tolist(), strict=True))
