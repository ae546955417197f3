"""How much a model has to read for an audit, estimated before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import Frequent, document_queries, frequent_words
from poslens.attribution.evaluation.chunks import Chunks

SURVEYED = 200
"""Documents that the estimate reads; a larger corpus is put at their mean."""


_TRIALS, _MOST_TOKENS = 40, 8192
"""Beginnings of long texts that are read to find where the model stops, and their longest."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Texts of an audit and their tokens, by their bytes: the documents (or their windows) in both
    orders with the beginnings of long texts, and the sentences and questions that are searched
    for."""

    documents: int
    document_texts: int
    document_tokens: int
    queries: int
    query_tokens: int

    @property
    def texts(self) -> int:
        """All texts that the model reads."""
        return self.document_texts + self.queries

    @property
    def tokens(self) -> int:
        """All tokens that the model reads."""
        return self.document_tokens + self.query_tokens


def workload(collection: Collection, chunks: Chunks, limit: int | None) -> Workload:
    """What an audit of the collection reads, of texts cut at `limit` tokens.

    Raises:
        UserError: the corpus cannot be read.
    """
    total = collection.survey.n
    documents = list(collection.sampled_documents(SURVEYED, 0).documents())
    frequent: Frequent = frequent_words(documents)
    texts = tokens = queries = query_tokens = 0
    for one in documents:
        length = estimated_tokens(one.text)
        if chunks.kind == "windows":
            step = chunks.size - chunks.overlap
            n = 1 + max(0, -(-(length - chunks.size) // step))
            texts, tokens = texts + n, tokens + length + (n - 1) * chunks.overlap
        else:
            texts, tokens = texts + 1, tokens + min(length, limit or length)
        try:
            made = document_queries(one, frequent)
        except UserError:
            continue
        asked = [text for text in (*made.sentences, *made.questions) if text]
        queries += len(asked)
        query_tokens += sum(map(estimated_tokens, asked))
    scale = total / max(1, len(documents))
    whole = sum(estimated_tokens(one.text) for one in documents)
    trial = min(limit or _MOST_TOKENS, _MOST_TOKENS, whole)
    return Workload(
        total,
        round(2 * texts * scale) + _TRIALS,
        round(2 * tokens * scale) + _TRIALS * trial,
        round(queries * scale),
        round(query_tokens * scale),
    )
