"""Hubs: documents that are in the top k of many queries that they do not answer.

N_k of a document is the number of queries that have it among their first k documents, not counting
documents judged relevant to the query or the document that a sentence comes from. A skewed
distribution of N_k is hubness (Radovanović et al. 2010, "Hubs in space", JMLR 11). The control is
the same index with the words of each document in random order: documents keep their topic and
length, but not the order of their content. Its numbers are means of several random orders.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection as Keys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy  # loads scipy.special at its first use
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import (
    MIN_DOCUMENTS,
    SEED,
    Estimate,
    Values,
    generator_for,
    jackknife_error,
    numbered,
    with_ends,
)
from poslens.attribution.curves.proportions import unless_constant
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import MIN_WORDS
from poslens.attribution.evaluation.comparison import Comparison, by_standard_error
from poslens.attribution.evaluation.search import DEPTH, Ranking
from poslens.attribution.text import sentences, starts_unspaced, word_spans

Counts = NDArray[np.int64]

SKEW_MARGIN = 0.5
"""Difference of two skewnesses up to which they are equivalent: a distribution within 0.5 of 0 is
approximately symmetric (Bulmer 1979, "Principles of Statistics", chapter 4)."""
MOST_TOP = DEPTH // 2
"""Largest k: a ranking has DEPTH documents, from which relevant ones are removed."""
ORDERS = 3
"""Number of random word orders: how much they differ shows how much the choice of one matters."""
CONTROL = "words of each document in random order"


# -- the control -----------------------------------------------------------------------------------


def shuffled_words(text: str, order: int = 0) -> str:
    """The text's words in a random order, seeded by the text and the number `order`. A word takes
    the position of another one; punctuation and white space stay where they are. In scripts without
    spaces a word is one character, as in `poslens.attribution.text.words`."""
    spans = word_spans(text)
    # The first order is seeded by the text alone, so what is stored for it stays valid.
    generator = generator_for(text, SEED, *([order] if order else []))
    words = [text[a:b] for a, b in spans]
    parts: list[str] = []
    end = 0
    for (start, stop), number in zip(spans, generator.permutation(len(words)), strict=True):
        word, between = words[number], text[end:start]
        # Scripts may change without a space, which would merge two words.
        if parts and not between and not starts_unspaced(word):
            between = " "
        parts += [between, word]
        end = stop
    return "".join([*parts, text[end:]])


def control(collection: Collection, order: int = 0) -> Collection:
    """The same queries and judgments over documents with their words in the random order of this
    number. Evidence has no position there, but queries still belong to its documents. The control
    has its own name, under which its rankings are stored."""
    words = ", ".join(filter(None, (collection.drawn, CONTROL)))
    return replace(
        collection,
        name=f"{collection.name}, random word order{f' {order + 1}' if order else ''}",
        queries=tuple(replace(query, evidence=None, span=None) for query in collection.queries),
        stream=lambda: (
            replace(document, text=shuffled_words(document.text, order))
            for document in collection.documents()
        ),
        files=(),
        drawn=words,
    )


def sentence_queries(collection: Collection, n: int) -> Collection:
    """The same corpus with `n` of its sentences as queries, drawn at random; each is judged to be
    answered by its own document. Sentences of fewer than MIN_WORDS words are left out.

    Raises:
        UserError: the corpus cannot be read, or no document has a sentence.
    """

    def random_key(query: Query) -> bytes:
        return hashlib.sha256(f"{SEED}\0{query.query_id}".encode("utf-8", "replace")).digest()

    every = (query for document in collection.documents() for query in _sentences(document))
    drawn = heapq.nsmallest(n, every, key=random_key)
    if not drawn:
        raise UserError(
            f"{collection.title} has no sentences of {MIN_WORDS} words or more to use as queries: "
            "add documents, or use a data set with queries."
        )
    words = f"{len(drawn):,} sentences as queries"
    return replace(
        collection,
        name=f"{collection.name}, {words}",
        queries=tuple(drawn),
        drawn=", ".join(filter(None, (collection.drawn, words))),
    )


def _sentences(document: Document) -> Iterator[Query]:
    for number, (start, end) in enumerate(sentences(document.text, document.language)):
        text = document.text[start:end]
        if len(word_spans(text)) >= MIN_WORDS:
            name, answer = f"{document.key} {number}", {document.key: 1}
            yield Query(name, text, document.part, document.language, answer)


# -- in-degrees ------------------------------------------------------------------------------------


def retrieved(ranking: Ranking, relevant: Keys[str], top: int) -> tuple[str, ...]:
    """The first `top` documents of a ranking that are not `relevant`, best first; fewer if the
    ranking ends before."""
    others = (key for key in ranking.document_ids if key not in relevant)
    return tuple(key for key, _ in zip(others, range(top), strict=False))


def tied_at(ranking: Ranking, relevant: Keys[str], top: int) -> bool:
    """Whether the documents at ranks `top` and `top` + 1, not counting `relevant` ones, have equal
    scores, so that their order in the corpus decides which of them counts."""
    scores = [
        score
        for key, score in zip(ranking.document_ids, ranking.scores, strict=True)
        if key not in relevant
    ]
    return len(scores) > top and scores[top - 1] == scores[top]


def in_degrees(
    rankings: Mapping[str, Ranking], queries: Sequence[Query], documents: Sequence[str], top: int
) -> InDegrees:
    """N_k for k = `top` of each of `documents`, by the rankings of the queries by id."""
    number_of = {key: number for number, key in enumerate(documents)}
    tops = tuple(
        np.array(
            [number_of[key] for key in retrieved(rankings[query.query_id], query.relevant, top)],
            dtype=np.int64,
        )
        for query in queries
    )
    tied = sum(tied_at(rankings[query.query_id], query.relevant, top) for query in queries)
    return InDegrees(tops, tuple(query.document for query in queries), len(documents), tied)


@dataclass(frozen=True)
class InDegrees:
    """N_k of each document: `counts` [D], from the numbers of the documents that each query
    retrieves, `tops` [Q]. Queries of one document, `groups` [Q], are not independent. `n_tied`
    queries have documents with equal scores on both sides of rank k (`tied_at`).

    Intervals are from the jackknife over these documents, each left out with all its queries, while
    the index stays the same: they show how much other queries would change the result. Resampling
    with replacement would add the noise of the counts a second time and raise the skewness.
    """

    tops: tuple[Counts, ...]
    groups: tuple[str, ...]
    n_documents: int
    n_tied: int = 0

    @cached_property
    def counts(self) -> Counts:
        """N_k of each document [D]."""
        return np.bincount(np.concatenate(self.tops), minlength=self.n_documents)

    @property
    def n_queries(self) -> int:
        """Number of queries, including those that retrieve nothing."""
        return len(self.tops)

    @property
    def n_without(self) -> int:
        """Number of queries that retrieve nothing."""
        return sum(not len(top) for top in self.tops)

    @property
    def n_groups(self) -> int:
        """Number of documents that the queries belong to."""
        return len(set(self.groups))

    @cached_property
    def _sums(self) -> Values:
        """Sums over documents of `_powers` of their counts: for all queries, and then without the
        queries of each group in turn [1 + G, 4]."""
        at = numbered(self.groups)
        order = np.argsort(at, kind="stable")
        parts = np.split(order, np.searchsorted(at[order], np.arange(1, self.n_groups)))
        counts = self.counts.astype(np.float64)
        total = _powers(counts).sum(0)
        rows = [total]
        for part in parts:
            gone, times = np.unique(
                np.concatenate([self.tops[i] for i in part]), return_counts=True
            )
            before, after = counts[gone], counts[gone] - times
            rows.append(total + (_powers(after) - _powers(before)).sum(0))
        return np.array(rows)

    @cached_property
    def skewnesses(self) -> Values:
        """Skewness for all queries, and without each group [1 + G]; NaN if all counts are equal."""
        first, second, third = self._sums[:, 1:].T / self.n_documents
        variance = second - first**2
        moment = third - 3 * first * second + 2 * first**3
        return np.asarray(moment / np.where(variance > 1e-9, variance, np.nan) ** 1.5)

    @cached_property
    def skewness(self) -> Estimate | None:
        """Third central moment of N_k over the 1.5th power of the second, over documents; None if
        all are equal."""
        return self._estimate(self.skewnesses)

    @cached_property
    def never(self) -> Estimate | None:
        """Share of documents with N_k = 0 (antihubs), without an interval if no group of queries
        changes it."""
        return _of_share(self._estimate(self.nevers))

    @cached_property
    def nevers(self) -> Values:
        """Share of documents with N_k = 0 for all queries, and without each group [1 + G]."""
        return np.asarray(self._sums[:, 0] / self.n_documents)

    @property
    def random_skewness(self) -> float | None:
        """Skewness if every query retrieved documents at random: that of a binomial distribution.
        None if nothing or everything is retrieved."""
        share = self.counts.mean() / self.n_queries
        variance = self.n_queries * share * (1 - share)
        return float((1 - 2 * share) / np.sqrt(variance)) if variance > 0 else None

    def minus(self, other: ShuffledInDegrees) -> Comparison | None:
        """Skewness minus that of the same queries in random orders. None if either is undefined.

        Raises:
            ValueError: the random orders have other queries.
        """
        if self.groups != other.indexes[0].groups:
            raise ValueError("in-degrees of other queries")
        values = [self.skewnesses - index.skewnesses for index in other.indexes]
        difference = self._estimate(*values)
        if difference is None:
            return None
        return by_standard_error(difference, *_error(values), SKEW_MARGIN)

    def _estimate(self, *values: Values) -> Estimate | None:
        """The mean of the first numbers of `values` [1 + G], one array per random order, with its
        interval."""
        value, n = float(np.mean([each[0] for each in values])), self.n_groups
        if not np.isfinite(value):
            return None
        error, degrees = _error(values)
        ends = None
        if error is not None and n >= MIN_DOCUMENTS:
            reach = error * float(scipy.special.stdtrit(degrees, 0.975))
            ends = value - reach, value + reach
        estimate = with_ends(value, ends, self.n_queries, n)
        return replace(estimate, formula="jackknife")


@dataclass(frozen=True)
class ShuffledInDegrees:
    """The in-degrees of the same queries in indexes that differ in the random order of the words of
    each document. Numbers are means over the orders; their intervals include how much the orders
    differ."""

    indexes: tuple[InDegrees, ...]

    @cached_property
    def counts(self) -> Values:
        """Mean N_k of each document [D]."""
        return np.asarray(np.mean([index.counts for index in self.indexes], axis=0))

    @cached_property
    def ordered_counts(self) -> Values:
        """Mean of the largest N_k, of the second largest, and so on [D]."""
        return np.asarray(np.mean([-np.sort(-index.counts) for index in self.indexes], axis=0))

    @cached_property
    def skewness(self) -> Estimate | None:
        """Skewness of N_k; None if all are equal in an order."""
        return self.indexes[0]._estimate(*(index.skewnesses for index in self.indexes))

    @cached_property
    def never(self) -> Estimate | None:
        """Share of documents with N_k = 0."""
        nevers = [index.nevers for index in self.indexes]
        return _of_share(self.indexes[0]._estimate(*nevers))


def _error(values: Sequence[Values]) -> tuple[float | None, float]:
    """Standard error of the mean of the first numbers of `values` [1 + G], from the jackknife over
    groups and the differences between the arrays, and its degrees of freedom (Satterthwaite 1946);
    None if it is undefined."""
    whole = np.mean(values, axis=0)
    error, n = jackknife_error(whole[1:]), len(values)
    if error is None:
        return None, len(whole) - 2
    of_groups, of_orders = error**2, np.var([each[0] for each in values], ddof=min(n - 1, 1)) / n
    total = float(of_groups + of_orders)
    if not of_orders:
        return error, len(whole) - 2
    degrees = total**2 / (of_groups**2 / (len(whole) - 2) + of_orders**2 / (n - 1))
    return total**0.5, float(degrees)


def _of_share(estimate: Estimate | None) -> Estimate | None:
    """The estimate of a share with its interval within 0 and 1; without one if it has no width."""
    estimate = unless_constant(estimate)
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))


def _powers(counts: Values) -> Values:
    """Whether a count [n] is 0, and its powers 1 to 3 [n, 4]."""
    return np.stack([counts == 0, counts, counts**2, counts**3], axis=1).astype(np.float64)
