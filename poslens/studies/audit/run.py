"""Runs an audit: ranks every sentence of a corpus against two indexes, and measures where the model
truncates. Memory holds the vectors of all documents, in original and random order, and the texts of
a few thousand documents; other texts are read from their files when needed.

Documents are searched in random order: at any time, those that are done are a random sample.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.datasets import Collection
from poslens.attribution.datasets.corpus import Document
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.audit import (
    ORDERS,
    DocumentQueries,
    SentenceRanks,
    audit_method,
    frequent_words,
)
from poslens.attribution.evaluation.audit_precision import Outlook, Precision
from poslens.attribution.evaluation.chunks import WHOLE, Chunks, no_late_chunks, require_fit
from poslens.attribution.evaluation.truncation import TRUNCATION, Truncation, long_texts, truncation
from poslens.attribution.retrievers.base import Retriever, is_pooled
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.jobs.items import compute_missing, random_order
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.audit import N_PROBED, AuditStore
from poslens.cache.storage.results import Key
from poslens.cache.storage.store import ModelKey
from poslens.studies.audit.index import (
    IndexBuilder,
    Queries,
    SearchIndex,
    TextEncoder,
    ranks_of,
)

SEARCHING = "Searching for sentences"
_MAX_PROBED_TOKENS = 8192
"""Longest text on which truncation is measured: each is read about a dozen times."""
_CHARACTERS_PER_TOKEN = 6


def require_family(spec: RetrieverSpec, chunks: Chunks = WHOLE) -> None:
    """Refuse models whose family has no index of vectors or words; `require_fit` checks the loaded
    model.

    Raises:
        UserError: the family has no such index, or no token vectors for late chunks.
    """
    if family_of(spec).search not in ("vectors", "index"):
        raise UserError(
            f"{spec.name} has neither a dense vector per text nor an index of words: select a "
            "dense model or BM25."
        )
    if chunks.kind == "late" and family_of(spec).search != "vectors":
        raise no_late_chunks(spec.name)


def run_audit(
    store: AuditStore,
    retriever: Retriever,
    model: ModelKey,
    chunks: Chunks,
    *,
    precision: Precision | None = None,
    options: RunOptions = RunOptions(),
    measure_truncation: bool = True,
) -> Progress:
    """Rank the sentences of every document without a result, and store them document by document;
    progress counts documents of the current stage. With `precision` the stage states the share of
    unretrieved sentences so far, and the run ends once its interval is narrow enough. With
    `measure_truncation` also measure where the model truncates, which reads long texts about a
    dozen times.

    Raises:
        Stopped: the work was stopped; stored results are not lost.
        UserError: the chunks do not fit the model, the corpus cannot be read, or the store cannot
            be written; earlier results remain stored.
    """
    require_family(retriever.spec)
    require_fit(retriever, chunks)
    method, n = audit_method(chunks), len(store.keys)
    encoder = TextEncoder(store.root, retriever, model, options)
    # First, so that it is also measured if every document already has a result.
    if measure_truncation and _probe_truncation(store, encoder).stopped:
        return Progress(n, 0, 0, 0, 0.0, stopped=True)
    if not store.ranks.missing(model, method, store.items, retry=options.retry_failed):
        return Progress(n, n, 0, 0, 0.0)
    options.on_stage("Counting words")
    frequent = frequent_words(store.collection.documents())
    builder = IndexBuilder(encoder, store.collection, chunks)
    indexes: list[SearchIndex] = []
    for order in ORDERS:
        options.on_stage("Reading documents" + (", shuffled" if order == "random" else ""))
        indexes.append(builder.index(order, n))
    options.on_stage(SEARCHING)
    number_of = {key: number for number, key in enumerate(store.keys)}
    items = store.items
    in_turn = [items[number] for number in random_order(n)]
    queries = Queries(encoder, store.collection, frequent, [item.item for item in in_turn])
    outlook = None
    if precision is not None:
        outlook = Outlook(precision, list(store.select(model, chunks).results.values()))

    def prepare(portion: Sequence[Key]) -> None:
        if outlook is not None and outlook.look():
            options.on_stage(f"{SEARCHING}: {outlook.words}")
        if not reached():
            queries.prepare([item.item for item in portion])

    def compute(item: Key) -> SentenceRanks:
        if reached():
            raise Stopped("The interval has reached the requested width.")
        document, own_queries, vectors = queries.of(item.item)
        number = number_of[item.item]
        ranks = _ranked(retriever, chunks, document, number, own_queries, vectors, indexes)
        if outlook is not None:
            outlook.add(ranks)
        return ranks

    def reached() -> bool:
        return outlook is not None and outlook.reached

    progress = compute_missing(
        store.ranks,
        model,
        method,
        in_turn,
        compute,
        options=options,
        portion=encoder.block_size,
        prepare=prepare,
    )
    return replace(progress, stopped=progress.stopped and not reached())


def _probe_truncation(store: AuditStore, encoder: TextEncoder) -> Progress:
    """Measure where the model truncates, unless the result is stored."""
    retriever, model, options = encoder.retriever, encoder.model, encoder.options
    first = store.probed_items[:1]
    if not is_pooled(retriever) or not store.probed.missing(
        model, TRUNCATION, first, retry=options.retry_failed
    ):
        return Progress(0, 0, 0, 0, 0.0)
    options.on_stage("Measuring where it truncates")
    texts = dict(
        zip(store.probed_items, _long_texts(store.collection, retriever.max_length), strict=False)
    )

    def embedded(text: str) -> NDArray[np.float32]:
        checkpoint()
        with retriever.lock, torch.no_grad():
            vector = retriever.embed(retriever.encode_plain([text], "document"))[0]
        values: NDArray[np.float32] = vector.float().cpu().numpy()
        return values

    def compute(item: Key) -> Truncation:
        return truncation(retriever, embedded, *texts[item])

    return compute_missing(
        store.probed,
        model,
        TRUNCATION,
        list(reversed(texts)),  # once the first text has a result, all others have been measured
        compute,
        options=options,
        portion=N_PROBED,
    )


def _long_texts(collection: Collection, limit: int) -> list[tuple[str, int]]:
    """Up to N_PROBED texts on which truncation is measured, each with its number of documents: the
    beginnings of the longest documents. Those longer than a beginning count as equally long, so the
    first of them in the corpus are taken. If all are short, one text joined from the longest."""
    enough = _CHARACTERS_PER_TOKEN * min(limit, _MAX_PROBED_TOKENS)
    # Enough short documents to join into a long text.
    n = max(N_PROBED, 200)
    longest = heapq.nlargest(
        n, collection.documents(), key=lambda document: min(len(document.text), 2 * enough)
    )
    texts = [document.text[: 2 * enough] for document in longest]
    return long_texts(texts, enough)[:N_PROBED]


def _ranked(
    retriever: Retriever,
    chunks: Chunks,
    document: Document,
    number: int,
    own_queries: DocumentQueries,
    vectors: Mapping[str, Any],
    indexes: Sequence[SearchIndex],
) -> SentenceRanks:
    """The ranks of a document for its sentences and questions in each index."""
    asked = [(text, number) for text in (*own_queries.sentences, *own_queries.questions)]
    ranks = np.array([ranks_of(index, vectors, asked) for index in indexes])
    return SentenceRanks(
        document.key,
        document.language,
        own_queries.n_words,
        own_queries.spans,
        _rounded(own_queries.positions),
        _rounded(_read(retriever, chunks, document.text, own_queries)),
        ranks.reshape(len(indexes), 2, len(own_queries.sentences)),
    )


def _read(
    retriever: Retriever, chunks: Chunks, text: str, queries: DocumentQueries
) -> NDArray[np.float64]:
    """Share of each sentence that the model reads [2, S], by order."""
    lengths = np.array([b - a for a, b in queries.spans], dtype=np.float64)
    shares = np.ones((2, len(lengths)))
    if chunks.kind == "windows" or not isinstance(retriever, DenseRetriever):
        return shares
    starts = ([a for a, _ in queries.spans], queries.shuffled_starts)
    for row, (order, begins) in enumerate(zip((text, queries.shuffled), starts, strict=True)):
        tokens = retriever.encode_texts([order], "document").texts[0]
        if tokens.truncated:
            left = tokens.read_until - np.array(begins, dtype=np.float64)
            shares[row] = np.clip(left / lengths, 0, 1)
    return shares


def _rounded(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares [2, S] to six decimals, as stored."""
    return np.array([[round(share, 6) for share in row] for row in shares.tolist()])
