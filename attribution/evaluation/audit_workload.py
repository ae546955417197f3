"""How much a model has to read for an audit or a chunk plan, estimated before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import Frequent, document_queries, frequent_words
from poslens.attribution.evaluation.chunk_plan import IndexSetting
from poslens.attribution.evaluation.chunks import Chunks
from poslens.attribution.text import words

SURVEYED = 200
"""Number of documents that the estimate reads; it scales their total up to a larger corpus."""


_TRIALS, _MOST_TOKENS = 40, 8192
"""Number and maximum tokens of the beginnings of long texts that the model reads so that an audit
finds where it truncates."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Numbers of texts that the model reads and of their tokens, estimated from bytes. In an audit:
    the documents (or their windows) in both orders with the beginnings of long texts, and the
    sentences and questions that are searched for. In a chunk plan: the documents in every setting,
    and the sentences and queries. `document_tokens` are those of whole documents, and
    `document_texts` counts whole documents and windows."""

    documents: int
    document_texts: int
    document_tokens: int
    window_tokens: int
    queries: int
    query_tokens: int

    @property
    def texts(self) -> int:
        """All texts that the model reads."""
        return self.document_texts + self.queries

    @property
    def tokens(self) -> int:
        """All tokens that the model reads."""
        return self.document_tokens + self.window_tokens + self.query_tokens


def _in_units(text: str, in_words: bool) -> tuple[int, float]:
    """The length of a text in tokens or words, and the tokens of one of them."""
    tokens = estimated_tokens(text)
    length = len(words(text)) if in_words else tokens
    return length, tokens / max(1, length)


def chunked(length: int, chunks: Chunks, limit: int | None) -> tuple[int, int]:
    """Number of texts that the model reads for a document of `length` tokens, and their tokens; it
    truncates texts at `limit` tokens."""
    if chunks.kind != "windows":
        return 1, min(length, limit or length)
    n = 1 + max(0, -(-(length - chunks.size) // (chunks.size - chunks.overlap)))
    return n, length + (n - 1) * chunks.overlap


def plan_workload(
    collection: Collection,
    settings: Sequence[IndexSetting],
    limit: int | None,
    in_words: bool = False,
) -> Workload:
    """What a chunk plan of the collection reads: the documents in each setting, and every sentence
    and query once. Texts that settings share, the first windows of one size, count once. With
    `in_words`, window sizes and the limit count words, and there are no late chunks, for which a
    model's tokens must be known.

    Raises:
        UserError: the corpus cannot be read.
    """
    total = collection.survey.n
    documents = list(collection.sampled_documents(SURVEYED, 0).documents())
    texts = 0
    whole_tokens = window_tokens = 0.0
    asked = [query.text for query in collection.queries]
    sentences: dict[str, None] = {}
    for document in documents:
        length, tokens = _in_units(document.text, in_words)
        # Lengths of the document's beginnings that were counted; the first window has no title.
        counted = set[int]()
        for setting in settings:
            if in_words and setting.chunks.kind == "late":
                continue
            n, n_units = chunked(length, setting.chunks, limit)
            n_tokens = n_units * tokens
            if setting.chunks.kind != "windows":
                if setting.chunks.kind == "whole":
                    counted.add(length)
                texts, whole_tokens = texts + n, whole_tokens + n_tokens
                continue
            title = estimated_tokens(document.title) if setting.titled and document.title else 0
            first = min(length, setting.chunks.size)
            if first in counted:
                texts, window_tokens = texts - 1, window_tokens - first * tokens
            counted.add(first)
            texts, window_tokens = texts + n, window_tokens + n_tokens + (n - 1) * title
        with suppress(UserError):
            sentences |= dict.fromkeys(document_queries(document, {}).sentences)
    scale = total / max(1, len(documents))
    return Workload(
        total,
        round(texts * scale),
        round(whole_tokens * scale),
        round(window_tokens * scale),
        round(len(sentences) * scale) + len(asked),
        round(sum(map(estimated_tokens, sentences)) * scale) + sum(map(estimated_tokens, asked)),
    )


def workload(
    collection: Collection, chunks: Chunks, limit: int | None, in_words: bool = False
) -> Workload:
    """What an audit of the collection reads, if the model truncates texts at `limit` tokens. With
    `in_words`, window sizes and the limit count words.

    Raises:
        UserError: the corpus cannot be read.
    """
    total = collection.survey.n
    documents = list(collection.sampled_documents(SURVEYED, 0).documents())
    frequent: Frequent = frequent_words(documents)
    texts, tokens = 0, 0.0
    queries: dict[str, None] = {}
    for document in documents:
        length, tokens_of_unit = _in_units(document.text, in_words)
        n, n_units = chunked(length, chunks, limit)
        texts, tokens = texts + n, tokens + n_units * tokens_of_unit
        try:
            of_document = document_queries(document, frequent)
        except UserError:
            continue
        asked = (*of_document.sentences, *of_document.questions)
        queries |= dict.fromkeys(text for text in asked if text)
    scale = total / max(1, len(documents))
    whole = sum(estimated_tokens(document.text) for document in documents)
    windows = chunks.kind == "windows"
    trial = min(limit or _MOST_TOKENS, _MOST_TOKENS, whole)
    return Workload(
        total,
        round(2 * texts * scale) + _TRIALS,
        (0 if windows else round(2 * tokens * scale)) + _TRIALS * trial,
        round(2 * tokens * scale) if windows else 0,
        round(len(queries) * scale),
        round(sum(map(estimated_tokens, queries)) * scale),
    )
