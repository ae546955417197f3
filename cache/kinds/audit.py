"""Which sentences of a corpus find their own document, kept beside a model's other results: a row
for each document, so that a stopped audit goes on where it was.

What it holds in memory are the documents' vectors, in their own order and shuffled, and a block of
documents at a time; texts are read from their files as they are needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.errors import Stopped, Unavailable, UserError
from poslens.attribution.evaluation.audit import (
    ORDERS,
    Frequent,
    Probes,
    Reach,
    audit_method,
    frequent_words,
)
from poslens.attribution.evaluation.chunks import WHOLE, Chunks, no_late_chunks, require_fit
from poslens.attribution.evaluation.truncation import (
    TRUNCATION,
    Truncation,
    long_texts,
    truncation,
)
from poslens.attribution.retrievers.base import Retriever, is_pooled
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.lexical import LexicalRetriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.audit_index import IndexBuilder, SearchIndex, block_size
from poslens.cache.kinds.audit_queries import Queries
from poslens.cache.kinds.rankings import fingerprint
from poslens.cache.storage.results import Key, Results, Stored, itself
from poslens.cache.storage.schema import Schema
from poslens.cache.storage.store import ModelKey

Stage = Callable[[str], None]

N_TRIED = 3
"""Texts on which it is tried where a model stops reading: the longest ones."""
_MOST_TOKENS = 8192
"""Longest text tried, in tokens: each is read some dozen times."""
_CHARACTERS_A_TOKEN = 6


def require_family(spec: RetrieverSpec, chunks: Chunks = WHOLE) -> None:
    """Refuse models whose documents have no index of vectors or words, as far as their family says;
    `require_fit` asks the loaded model.

    Raises:
        UserError: this one has none, or has no token vectors for late chunks.
    """
    if family_of(spec).search not in ("vectors", "index"):
        raise UserError(
            f"{spec.name} has no one vector for each text, so its index is not audited: choose a "
            "dense model or BM25."
        )
    if chunks.kind == "late" and family_of(spec).search != "vectors":
        raise no_late_chunks(spec.name)


REACHES = Schema(Reach, given=lambda owner: {"document_id": owner.item})
TRUNCATIONS = Schema(Truncation)


class AuditStore:
    """Audits of one collection below one folder."""

    def __init__(self, root: Path, collection: Collection) -> None:
        self.collection = collection
        self.fingerprint = fingerprint(collection)
        self._root = root
        self._reaches: Results[Key, Reach] = Results(
            root, "reachability", key=itself, schema=REACHES
        )
        self._truncations: Results[Key, Truncation] = Results(
            root, "truncation", key=itself, schema=TRUNCATIONS
        )

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Every document's key, in the order of the corpus."""
        return tuple(one.key for one in self.collection.documents())

    @cached_property
    def _frequent(self) -> Frequent:
        return frequent_words(self.collection.documents())

    def select(self, model: ModelKey, chunks: Chunks) -> Stored[Reach]:
        """What is stored, in the order of the corpus, and which documents failed and why."""
        return self._reaches.select(model, audit_method(chunks), self._items)

    def missing(self, model: ModelKey, chunks: Chunks) -> int:
        """How many documents have neither a result nor a reason."""
        return len(self._reaches.missing(model, audit_method(chunks), self._items))

    def truncations(self, model: ModelKey) -> list[Truncation]:
        """Where the model stopped reading, of each text that was tried."""
        items = [self._tried(number) for number in range(N_TRIED)]
        return list(self._truncations.select(model, TRUNCATION, items).results.values())

    @property
    def _items(self) -> list[Key]:
        return [Key(self.collection.name, key, self.fingerprint) for key in self.keys]

    def _tried(self, number: int) -> Key:
        return Key(self.collection.name, f"text {number + 1}", self.fingerprint)

    # -- computing ---------------------------------------------------------------------------------

    def audit(
        self,
        retriever: Retriever,
        model: ModelKey,
        chunks: Chunks,
        *,
        options: RunOptions = RunOptions(),
        on_stage: Stage = lambda stage: None,
    ) -> Progress:
        """Search for every sentence that has no result yet, and store what is found document by
        document; progress counts the documents of the stage at hand.

        Raises:
            UserError: the chunks do not fit the model, the corpus cannot be read, or the store
                cannot be written; what was stored before stays.
        """
        require_family(retriever.spec)
        require_fit(retriever, chunks)
        method = audit_method(chunks)
        # First, so that where every document has its result this is known too.
        tried = self._try_long_texts(retriever, model, on_stage, options)
        if tried.stopped:
            return tried
        if not self._reaches.missing(model, method, self._items, retry=options.retry_failed):
            n = len(self.keys)
            return Progress(n, n, 0, 0, 0.0)
        on_stage("Counting words")
        frequent = self._frequent
        builder = IndexBuilder(self._root, self.collection, retriever, model, chunks, options)
        indexes: list[SearchIndex] = []
        for order in ORDERS:
            on_stage("Reading documents" + (", shuffled" if order == "shuffled" else ""))
            try:
                indexes.append(builder.index(order, len(self.keys)))
            except Unavailable:
                raise
            except Stopped:
                return Progress(len(self.keys), 0, 0, 0, 0.0, stopped=True)
        on_stage("Searching for sentences")
        number_of = {key: number for number, key in enumerate(self.keys)}
        queries = Queries(retriever, self.collection, frequent, options)

        def compute(item: Key) -> Reach:
            document, made, vectors = queries.of(item.item)
            number = number_of[item.item]
            return _reach(retriever, chunks, document, number, made, vectors, indexes)

        return compute_missing(
            self._reaches,
            model,
            method,
            self._items,
            compute,
            options=options,
            portion=block_size(retriever),
            prepare=lambda items: queries.prepare([item.item for item in items]),
        )

    def _try_long_texts(
        self, retriever: Retriever, model: ModelKey, on_stage: Stage, options: RunOptions
    ) -> Progress:
        """Try where the model stops reading, unless that is known."""
        if not is_pooled(retriever):
            return Progress(0, 0, 0, 0, 0.0)
        items = [self._tried(number) for number in range(N_TRIED)]
        if self._truncations.missing(model, TRUNCATION, items):
            on_stage("Looking where it stops reading")
        texts: list[tuple[str, int]] = []

        def prepare(_items: Sequence[Key]) -> None:
            texts[:] = self._long_texts(retriever.max_length)

        def embedded(text: str) -> NDArray[np.float32]:
            if options.should_stop():
                raise Stopped("Stopped before all texts were tried.")
            with retriever.lock, torch.no_grad():
                vector = retriever.embed(retriever.encode_plain([text], "document"))[0]
            found: NDArray[np.float32] = vector.float().cpu().numpy()
            return found

        def compute(item: Key) -> Truncation:
            number = int(item.item.rpartition(" ")[2]) - 1
            if number >= len(texts):
                raise UserError("The corpus has fewer texts that are as long as the model reads.")
            return truncation(retriever, embedded, *texts[number])

        return compute_missing(
            self._truncations,
            model,
            TRUNCATION,
            items,
            compute,
            # Documents alone are tried again: the corpus has no longer texts the next time.
            options=replace(options, retry_failed=False),
            portion=N_TRIED,
            prepare=prepare,
        )

    def _long_texts(self, limit: int) -> list[tuple[str, int]]:
        enough = _CHARACTERS_A_TOKEN * min(limit, _MOST_TOKENS)
        # Enough short documents to make one long text of.
        n = max(N_TRIED, 200)
        longest = heapq.nlargest(
            n, self.collection.documents(), key=lambda one: min(len(one.text), 2 * enough)
        )
        return long_texts([one.text[: 2 * enough] for one in longest], enough)[:N_TRIED]


def _reach(
    retriever: Retriever,
    chunks: Chunks,
    document: Document,
    number: int,
    made: Probes,
    vectors: Mapping[str, Any],
    indexes: Sequence[SearchIndex],
) -> Reach:
    """Search for a document's sentences and questions in each index."""
    texts = (*made.sentences, *made.questions)
    at = [i for i, text in enumerate(texts) if text in vectors]
    queries: Any = [vectors[texts[i]] for i in at]
    if not isinstance(retriever, LexicalRetriever):
        queries = torch.stack(queries)
    ranks = np.zeros((len(indexes), len(texts)), dtype=np.int64)
    for row, index in enumerate(indexes):
        ranks[row, at] = index.ranks(queries, [number] * len(at))
    return Reach(
        document.key,
        document.language,
        made.n_words,
        made.spans,
        _rounded(made.places),
        _rounded(_read(retriever, chunks, document.text, made)),
        ranks.reshape(len(indexes), 2, len(made.sentences)),
    )


def _read(retriever: Retriever, chunks: Chunks, text: str, made: Probes) -> NDArray[np.float64]:
    """How much of each sentence the model reads [2, S], in the text's order and shuffled."""
    lengths = np.array([b - a for a, b in made.spans], dtype=np.float64)
    found = np.ones((2, len(lengths)))
    if chunks.kind == "windows" or not isinstance(retriever, DenseRetriever):
        return found
    starts = ([a for a, _ in made.spans], made.shuffled_starts)
    with retriever.lock:
        for row, (one, begins) in enumerate(zip((text, made.shuffled), starts, strict=True)):
            tokens = retriever.encode_texts([one], "document").texts[0]
            if tokens.truncated:
                left = tokens.read_until - np.array(begins, dtype=np.float64)
                found[row] = np.clip(left / lengths, 0, 1)
    return found


def _rounded(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares [2, S] to six decimals, as they are stored."""
    return np.array([[round(share, 6) for share in row] for row in shares.tolist()])
