"""An index of documents that returns the rank at which a query retrieves its own document.

A rank is 1 plus the number of documents with a higher score. No ranking is sorted or stored, and
only one block of scores is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from poslens.attribution.retrievers.lexical import Statistics, library_index, statistics_of

Ints = NDArray[np.int64]
Similarity = Callable[[Tensor, Tensor], Tensor]
"""Scores [P, C] of queries [P, H] with vectors [C, H]."""

NOT_FOUND = 2**31 - 1
"""The rank of a document that has no term in common with the query."""


class Ranks:
    """The rank of each query's own document among all documents, from scores in blocks.

    `columns` [C] is the document of each vector, in ascending order; a document's score is that of
    its best vector. `same` [m] is, for each of the m documents, the document whose vectors it
    shares (itself, or an earlier one with the same text). Ties go to the document that comes first
    in the corpus, as in every search of PosLens.
    """

    def __init__(self, columns: Sequence[int], same: Sequence[int]) -> None:
        held = np.asarray(columns, dtype=np.int64)
        self._owners, self._starts, counts = np.unique(held, return_index=True, return_counts=True)
        place = {int(owner): at for at, owner in enumerate(self._owners)}
        at = np.array([place.get(int(index), -1) for index in same], dtype=np.int64)
        self._known = np.flatnonzero(at >= 0)
        self._at = at[self._known]
        self._column_of = at
        self.n_vectors = np.where(at >= 0, np.append(counts, 0)[at], 0)
        """Number of vectors of each document [m]."""

    def documents(self, scores: NDArray[np.floating]) -> NDArray[np.floating]:
        """The score of every document [P, m] from scores of vectors [P, C]; minus infinity for a
        document without vectors."""
        values = np.full((len(scores), len(self._column_of)), -np.inf, dtype=scores.dtype)
        values[:, self._known] = self._best(scores)[:, self._at]
        return values

    def _best(self, scores: NDArray[np.floating]) -> NDArray[np.floating]:
        best: NDArray[np.floating] = np.maximum.reduceat(scores, self._starts, axis=1)
        return best

    def of(self, scores: NDArray[np.floating], own: Sequence[int]) -> Ints:
        """Ranks [P] from 1, from scores [P, C]; `own` [P] are the queries' documents. NOT_FOUND if
        the own document has no vector or a score of minus infinity."""
        best = self._best(scores)
        ranks = np.full(len(scores), NOT_FOUND, dtype=np.int64)
        for row, document in enumerate(own):
            column = self._column_of[document]
            if column < 0 or not np.isfinite(mine := best[row, column]):
                continue
            each = best[row, self._at]
            before = self._known < document
            ranks[row] = 1 + np.count_nonzero((each > mine) | ((each == mine) & before))
        return ranks


class VectorIndex:
    """Vectors [C, H] of documents' chunks with their similarity. `n_vectors` [m] are the numbers of
    vectors per document."""

    def __init__(
        self, vectors: Tensor, ranks: Ranks, similarity: Similarity, memory: int = 64 << 20
    ) -> None:
        self._vectors, self._ranks, self._similarity = vectors, ranks, similarity
        self._rows = max(1, memory // (4 * max(1, len(vectors))))
        self.n_vectors = ranks.n_vectors

    def ranks(self, queries: Tensor, own: Sequence[int]) -> Ints:
        """Ranks [P] of the own documents for query vectors [P, H]."""
        arrays = [
            self._ranks.of(
                self._similarity(queries[a : a + self._rows], self._vectors).float().numpy(),
                own[a : a + self._rows],
            )
            for a in range(0, len(queries), self._rows)
        ]
        return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)

    def scores(self, query: Tensor) -> NDArray[np.floating]:
        """Scores [m] of every document for a query vector [H]."""
        values = self._similarity(query[None], self._vectors).float().numpy()
        scores: NDArray[np.floating] = self._ranks.documents(values)[0]
        return scores


def bm25(
    chunks: list[list[str]], k1: float, b: float
) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """BM25 (bm25s) of C chunks, given as words: a function that returns their scores [C] for the
    words of a query, minus infinity for a chunk without any of them."""
    index = library_index(chunks, k1, b)

    def scores(query: Sequence[str]) -> NDArray[np.float32]:
        # As float32, as in every search: scores that differ by rounding are ties.
        values: NDArray[np.float32] = index.get_scores(list(query)).astype(np.float32)
        values[values <= 0] = -np.inf
        return values

    return scores


class LexicalIndex:
    """`bm25` over documents' chunks, given as words. A document without a term of the query
    is not found."""

    def __init__(self, chunks: Sequence[Sequence[str]], ranks: Ranks, k1: float, b: float) -> None:
        self._ranks, self._chunks = ranks, chunks
        self.n_vectors = ranks.n_vectors
        self._scores = bm25([list(chunk) for chunk in chunks], k1, b)

    def ranks(self, queries: Sequence[Sequence[str]], own: Sequence[int]) -> Ints:
        """Ranks [P] of the own documents for queries as words."""
        values = np.full(len(queries), NOT_FOUND, dtype=np.int64)
        for row, (asked, document) in enumerate(zip(queries, own, strict=True)):
            values[row] = self._ranks.of(self._scores(asked)[None], [document])[0]
        return values

    def scores(self, query: Sequence[str]) -> NDArray[np.floating]:
        """Scores [m] of every document for a query as words."""
        scores: NDArray[np.floating] = self._ranks.documents(self._scores(query)[None])[0]
        return scores

    @cached_property
    def statistics(self) -> Statistics:
        """BM25's statistics of these documents, to score other documents by them."""
        return statistics_of(self._chunks)
