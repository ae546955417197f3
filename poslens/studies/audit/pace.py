"""How much a model will read for an audit or a chunk plan, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from poslens.attribution.batching import batch_tokens, estimated_tokens
from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.evaluation.audit_workload import Workload
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.endpoint_address import address_of
from poslens.attribution.retrievers.endpoint_client import PROBE
from poslens.attribution.retrievers.endpoint_cost import Cost
from poslens.attribution.retrievers.limits import context_limit, unit
from poslens.attribution.retrievers.scoring import read_texts
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.compute.runs import Job, duration

_TIMED = 16
"""Number of documents that are timed: the beginnings of all, and four of them in full and as
windows of `_WINDOW` characters."""
_WINDOW = 400

Asked = TypeVar("Asked", bound=Hashable)
Count = Callable[[Collection, Asked, int | None, bool], Workload]
"""Counts what a model reads for some chunks or settings: `workload` or `plan_workload`."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens per second at which a model reads whole documents, windows of them and sentences, and
    the number of tokens that it reads of a text (`limit`)."""

    documents: float
    windows: float
    queries: float
    limit: int

    def seconds(self, of: Workload) -> float:
        """Estimated seconds for reading."""
        return (
            of.document_tokens / self.documents
            + of.window_tokens / self.windows
            + of.query_tokens / self.queries
        )


def measured_pace(
    compute: Compute, model: ModelIdentity, retriever: DenseRetriever, collection: Collection
) -> Pace:
    """The model's pace in this process, measured once with some documents and a batch of sentences,
    after one batch to warm up.

    Raises:
        UserError: the corpus cannot be read.
    """
    device_slot = compute.device_slot(model.spec)

    def rate(texts: Sequence[str]) -> float:
        started = time.perf_counter()
        for _ in read_texts(retriever, texts, "document", device_slot=device_slot):
            pass
        read = sum(min(estimated_tokens(text), retriever.max_length) for text in texts)
        return read / (time.perf_counter() - started)

    def pace() -> Pace:
        texts = [document.text for document in islice(collection.documents(), _TIMED)]
        sentences = [part[:100] for part in texts] * 2
        # Models read short texts at a higher rate than long ones.
        windows = [
            text[start : start + _WINDOW]
            for text in texts[:4]
            for start in range(0, min(len(text), 4 * _WINDOW), _WINDOW)
        ]
        rate(sentences[:1])
        return Pace(rate(texts[:4]), rate(windows), rate(sentences), retriever.max_length)

    return _paces.get((model.key, model.device), pace)


def reading_estimate(
    compute: Compute,
    spec: RetrieverSpec,
    collection: Collection,
    asked: Asked,
    workload: Count[Asked],
    words: Callable[[Workload], str],
    *,
    load: bool,
    most: str = "",
) -> str:
    """A sentence: the texts and tokens that a model will read, and the time if the model was timed
    in this process; empty for BM25, and for endpoints, for which the job states what it sends.
    `workload` counts what the chunks or settings `asked` require, `words` describes the counted
    texts, and `most` precedes the time. With `load` the model may be loaded to time it.

    Raises:
        UserError: the corpus cannot be read, or the model cannot be loaded.
    """
    if family_of(spec).search != "vectors" or spec.remote:
        return ""
    model = compute.identify(spec)
    pace = None
    if timed := not model.stored_only:
        pace = _paces.find((model.key, model.device))
        if pace is None and load and isinstance(it := compute.retriever(model), DenseRetriever):
            pace = measured_pace(compute, model, it, collection)
    # Not every folder states the limit that its model has once it is loaded.
    limit = context_limit(model.spec) if pace is None else pace.limit
    work = _counted(spec, collection, asked, workload, limit)
    tokens = float(f"{work.tokens:.3g}")
    sentence = f"{words(work)} of {work.documents:,} documents, about {tokens:,.0f} tokens"
    if not timed:
        return f"{sentence}."
    if pace is None:
        return f"{sentence}; the time is estimated once the model is loaded."
    return f"{sentence}: {most}about {duration(pace.seconds(work))} on this machine."


def _counted(
    spec: RetrieverSpec,
    collection: Collection,
    asked: Asked,
    workload: Count[Asked],
    limit: int | None,
) -> Workload:
    in_words = unit(spec) == "words"
    key = (workload, collection.digest, asked, limit, in_words)
    return _workloads.get(key, lambda: workload(collection, asked, limit, in_words))


def with_estimate(
    job: Job, spec: RetrieverSpec, collection: Collection, asked: Asked, workload: Count[Asked]
) -> Job:
    """The job, whose amount of text for an endpoint is estimated if counting it takes too long."""
    if job.sending is None:
        return job

    def estimated() -> Cost:
        work, address = (
            _counted(spec, collection, asked, workload, spec.max_length),
            address_of(spec),
        )
        # A batch is full by its texts or by its tokens.
        requests = max(
            -(-work.texts // address.texts_a_request), work.tokens // batch_tokens("cpu")
        )
        tokens = work.tokens + requests * estimated_tokens(PROBE)
        return Cost(work.texts, tokens, requests, address.price, "about")

    return replace(job, sending=replace(job.sending, estimated=estimated))


_paces: LRUCache[Pace] = LRUCache(32)
_workloads: LRUCache[Workload] = LRUCache(32)
