"""Runs a chunk plan: builds the index of each setting, and searches it for the sentences and
queries of every document. Queries, and windows that settings share, are encoded only once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.datasets.corpus import Document, Query
from poslens.attribution.errors import RunEnded, UserError
from poslens.attribution.evaluation.audit import document_queries
from poslens.attribution.evaluation.chunk_plan import (
    TIMED,
    UNKNOWN,
    DocumentChunks,
    EncodingTime,
    IndexSetting,
)
from poslens.attribution.evaluation.chunks import (
    WHOLE,
    late_vectors,
    read_spans,
    require_fit,
    windows_of,
)
from poslens.attribution.evaluation.document_index import Ints
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.lexical import LexicalRetriever
from poslens.attribution.retrievers.scoring import read_texts
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.chunk_plan import ChunkPlanStore
from poslens.cache.storage.results import Key
from poslens.cache.storage.store import ModelKey
from poslens.studies.audit.index import (
    IndexBuilder,
    Reading,
    SearchIndex,
    TextEncoder,
    ranks_of,
)
from poslens.studies.audit.run import require_family


def run_plan(
    store: ChunkPlanStore,
    retriever: Retriever,
    model: ModelKey,
    settings: Sequence[IndexSetting],
    *,
    device: str,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Compute and store the missing results of each setting, document by document; progress counts
    documents times settings. If a setting does not fit the model, the reason is stored.

    Raises:
        Stopped: the work was stopped; stored results are not lost.
        UserError: the corpus cannot be read, or the store cannot be written.
    """
    n, total = len(store.keys), len(store.keys) * len(settings)
    started, computed = time.perf_counter(), 0
    encoder = TextEncoder(store.root, retriever, model, options)
    queries = _Queries(store, encoder)

    def progress(done: int, stopped: bool = False) -> Progress:
        return Progress(total, done, computed, 0, time.perf_counter() - started, stopped)

    for number, setting in enumerate(settings):
        before = number * n
        options.on_progress(progress(before))
        missing = store.missing(model, setting, retry=options.retry_failed)
        if not missing:
            continue
        options.on_stage("whole documents" if setting.chunks == WHOLE else str(setting))
        try:
            require_family(retriever.spec, setting.chunks)
            require_fit(retriever, setting.chunks)
        except RunEnded:
            raise
        except UserError as reason:
            store.documents.put_failures(
                model, setting.method, [(item, str(reason)) for item in missing]
            )
            continue

        def show(part: Progress, before: int = before, computed: int = computed) -> None:
            seconds = time.perf_counter() - started
            options.on_progress(
                Progress(total, before + part.done, computed + part.computed, 0, seconds)
            )

        of_index = replace(options, on_progress=show)
        _time(store, encoder, setting, device)
        of_setting = replace(encoder, options=of_index), store.collection, setting.chunks
        index = IndexBuilder(*of_setting, titled=setting.titled).index("original", n)
        part = compute_missing(
            store.documents,
            model,
            setting.method,
            store.items,
            partial(queries.result, setting=setting, index=index),
            options=replace(options, on_progress=lambda progress: None),
            portion=encoder.block_size,
            prepare=queries.prepare,
        )
        computed += part.computed
        if part.stopped:
            return progress(before + part.done, stopped=True)
    return progress(total)


def _time(store: ChunkPlanStore, encoder: TextEncoder, setting: IndexSetting, device: str) -> None:
    """Measure and store how long it takes to encode some documents, one at a time. Does nothing if
    that is stored, or if the model computes no vectors on this machine.

    Raises:
        Stopped: the run was stopped.
        UserError: the corpus cannot be read, or the store cannot be written.
    """
    item, retriever, model = store.timed_item(device), encoder.retriever, encoder.model
    if not isinstance(retriever, DenseRetriever) or store.times.get(model, setting.method, item):
        return
    texts = list(store.collection.sampled_documents(TIMED, 0).documents())
    seconds = []
    for document in texts[:1] + texts:  # the first measurement is a warm-up
        checkpoint()
        parts = _parts(retriever, document, setting)
        try:
            with encoder.options.device_slot():
                began = time.perf_counter()
                if setting.chunks.kind == "late":
                    late_vectors(retriever, parts, setting.chunks.size)
                else:
                    for _ in read_texts(retriever, parts, "document"):
                        pass
                seconds.append(time.perf_counter() - began)
        except UserError:  # the model reads no token of the text
            continue
    if len(seconds) > 1:
        store.times.put(model, setting.method, [(item, EncodingTime(tuple(seconds[1:])))])


def _parts(retriever: Retriever, document: Document, setting: IndexSetting) -> list[str]:
    """The texts that are encoded for a document: its windows, or the whole text."""
    if setting.chunks.kind != "windows":
        return [document.text]
    title = document.title if setting.titled else ""
    return windows_of(retriever, document.text, setting.chunks, title)


@dataclass(frozen=True)
class _Asked:
    """A document, its sentences, and the queries that it answers, each with the numbers of all
    documents that answer it."""

    document: Document
    sentences: tuple[str, ...]
    queries: tuple[tuple[Query, tuple[int, ...]], ...]

    @property
    def texts(self) -> list[str]:
        """All texts that are searched for."""
        return [*self.sentences, *(query.text for query, _ in self.queries)]


class _Queries:
    """The sentences and queries of a block of documents, with their vectors (or words), which it
    ranks in the index of each setting."""

    def __init__(self, store: ChunkPlanStore, encoder: TextEncoder) -> None:
        self._store, self._encoder, self._retriever = store, encoder, encoder.retriever
        self._reading = Reading(store.collection, store.keys)
        self._number_of = {key: number for number, key in enumerate(store.keys)}
        self._asked: dict[str, _Asked] = {}
        self._vectors: dict[str, Any] = {}

    def prepare(self, items: Sequence[Key]) -> None:
        """Read these documents and encode their queries, unless vectors are stored.

        Raises:
            Stopped: the run was stopped.
            UserError: the model computes no vectors.
        """
        self._asked = {item.item: self._of_document(item.item) for item in items}
        texts = list(dict.fromkeys(text for asked in self._asked.values() for text in asked.texts))
        if isinstance(self._retriever, LexicalRetriever):
            words = {text: self._retriever.terms_of(text) for text in texts}
            self._vectors = {text: terms for text, terms in words.items() if terms}
            return
        self._vectors, _ = self._encoder.vectors("query", texts)

    def _of_document(self, key: str) -> _Asked:
        document = self._reading.take(key)
        try:
            # Frequent words matter only for queries, not for sentences.
            sentences = document_queries(document, {}).sentences
        except UserError:  # it has no sentence to search for, but may answer queries
            sentences = ()
        return _Asked(document, sentences, tuple(self._store.queries.get(key, ())))

    def result(self, item: Key, *, setting: IndexSetting, index: SearchIndex) -> DocumentChunks:
        """The result of one document of the block in the index of a setting.

        Raises:
            UserError: a score is not a number.
        """
        asked, number = self._asked[item.item], self._number_of[item.item]
        ranks = ranks_of(index, self._vectors, [(text, number) for text in asked.sentences])
        answers = [(query.text, each) for query, numbers in asked.queries for each in numbers]
        all_ranks = iter(ranks_of(index, self._vectors, answers).tolist())
        best = [min(next(all_ranks) for _ in numbers) for _, numbers in asked.queries]
        return DocumentChunks(
            item.item,
            int(index.n_vectors[number]),
            ranks,
            np.array(best, dtype=np.int64),
            self._cut(asked, setting),
        )

    def _cut(self, asked: _Asked, setting: IndexSetting) -> Ints:
        """Whether the evidence of each query [Q] is cut: 1 if no chunk contains all of it, 0 if one
        does, `UNKNOWN` without evidence in this document."""
        spans = [
            query.span if query.evidence_document == asked.document.key else None
            for query, _ in asked.queries
        ]
        cut = np.full(len(spans), UNKNOWN, dtype=np.int64)
        if any(spans):
            try:
                chunks = read_spans(self._retriever, asked.document.text, setting.chunks)
            except UserError:  # the model reads no token of the document
                chunks = []
            for number, span in enumerate(spans):
                if span is not None and chunks is not None:
                    cut[number] = not any(a <= span.start and span.end <= b for a, b in chunks)
        return cut
