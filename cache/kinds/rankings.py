"""Stored rankings of a collection's queries.

The state of a search over a corpus is stored while it runs: the best documents so far and how many
documents were searched, so that a stopped search can be resumed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from poslens.attribution.datasets.corpus import Collection, Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.scorers import scorer
from poslens.attribution.evaluation.search import (
    BLOCK,
    DEPTH,
    GPU_BLOCK,
    Ranking,
    TopK,
    rankings,
    rerank,
    search,
    search_lexical,
)
from poslens.attribution.interventions.relocation import require_shares, tokens_of
from poslens.attribution.retrievers.base import Joint, Pooled, Retriever, separate
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.lexical import LexicalRetriever
from poslens.attribution.types import Method
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import file_digest
from poslens.cache.kinds.embeddings import EmbeddingStore, TextCount, stored_vectors
from poslens.cache.storage.results import Key, Results, itself
from poslens.cache.storage.rows import SEARCH
from poslens.cache.storage.schema import Packed, Schema, register
from poslens.cache.storage.store import ModelKey

_CHECKPOINT_SECONDS = 20.0
_MAX_SEARCH = 512 << 20
"""Maximum size in bytes of a stored search state, which is enough for 600,000 queries."""


def ranking_method(own_corpus: bool, first_stage: str = "") -> Method:
    """The method of a ranking: each query over the whole collection or over its own corpus; either
    a full search or a reranking of the top 100 of `first_stage`."""
    params: dict[str, Any] = {"corpus": "own" if own_corpus else "whole", "depth": DEPTH}
    if first_stage:
        params["first_stage"] = first_stage
    return Method("ranking", {**params, "version": 1})


EVIDENCE_READ = Method("evidence_read", {"version": 1})
"""The store's key for the shares of evidence read."""

_TEXTS_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class EvidenceRead:
    """The share of a query's evidence that a model read."""

    share: float

    def __post_init__(self) -> None:
        require_shares(self.share)


@dataclass(frozen=True, slots=True)
class Search:
    """The state of an unfinished search: the best `k` of each of n queries, `keys` [n, k] as in
    `TopK`, among the first `seen` documents."""

    seen: int
    k: int
    keys: Annotated[NDArray[np.int64], Packed(_MAX_SEARCH)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.keys.reshape(-1, self.k))
        if self.seen < 0:
            raise ValueError("no number of documents")

    @classmethod
    def of(cls, best: TopK) -> Search:
        """The stored form of a top k."""
        return cls(best.seen, best.keys.shape[1], best.keys.numpy())

    def top(self) -> TopK:
        """The top k from which the search is resumed."""
        best = TopK(*self.keys.shape)
        best.keys = torch.from_numpy(self.keys.copy())
        best.seen = self.seen
        return best


RANKINGS = register(Schema(Ranking, "ranking", given=lambda owner: {"query_id": owner.item}))
READS = register(Schema(EvidenceRead, "evidence_read"))
SEARCHES = register(Schema(Search, SEARCH))


class RankingStore:
    """Rankings of one collection below one folder."""

    def __init__(self, root: Path, collection: Collection) -> None:
        self.collection = collection
        self.fingerprint = fingerprint(collection)
        self.embeddings = EmbeddingStore(root)
        self._rankings: Results[Key, Ranking] = Results(
            root, RANKINGS, key=itself, fits=self._names_documents
        )
        self._reads: Results[Key, EvidenceRead] = Results(root, READS, key=itself)
        self._searches: Results[Key, Search] = Results(root, SEARCHES, key=itself)

    def evidence_read(self, model: ModelKey) -> dict[str, float]:
        """The stored shares of the evidence that a model read, by query id."""
        shares = self._reads.select(model, EVIDENCE_READ, self._placed).results
        return {query_id: evidence.share for query_id, evidence in shares.items()}

    def evidence_missing(self, model: ModelKey) -> bool:
        """Whether a query with evidence lacks its share of evidence read."""
        return bool(self._reads.missing(model, EVIDENCE_READ, self._placed))

    def read_evidence(
        self, retriever: Retriever, model: ModelKey, *, options: RunOptions = RunOptions()
    ) -> Progress:
        """Store how much of each query's evidence in its document the model reads. Progress counts
        queries with evidence.

        Raises:
            UserError: the corpus can't be read, or the store can't be written.
        """
        queries = {query.query_id: query for query in self.collection.queries}
        texts: dict[str, str] = {}

        def prepare(portion: Sequence[Key]) -> None:
            texts.clear()
            keys = (queries[item.item].evidence_document for item in portion)
            texts.update(self.collection.texts(key for key in keys if key is not None))

        def compute(item: Key) -> EvidenceRead:
            query = queries[item.item]
            key, span = query.evidence_document, query.span
            if key not in texts or span is None:
                return EvidenceRead(0.0)  # the corpus lacks the document, so nothing is read
            tokens = tokens_of(retriever, query.text, texts[key])
            return EvidenceRead(tokens.evidence_read(span))

        return compute_missing(
            self._reads,
            model,
            EVIDENCE_READ,
            self._placed,
            compute,
            options=options,
            portion=_TEXTS_AT_ONCE,
            prepare=prepare,
        )

    @property
    def _placed(self) -> list[Key]:
        """Keys of the queries with evidence. The collection's fingerprint covers the documents but
        neither the evidence span nor which of several documents contains it."""
        keys = []
        for query in self.collection.queries:
            if query.evidence is not None:
                where = f"{query.span.start}-{query.span.end}" if query.span else ""
                if len(query.pairs) > 1:
                    where += f" of {query.evidence_document}"
                text = f"{self.fingerprint}:{where}"
                keys.append(Key(self.collection.name, query.query_id, text))
        return keys

    def select(
        self, model: ModelKey, method: Method, queries: Sequence[Query] | None = None
    ) -> list[Ranking]:
        """The stored rankings of these queries (all by default), in their order. A ranking with a
        document that the corpus lacks counts as missing.

        Raises:
            UserError: the corpus can't be read.
        """
        items = [self._item(query) for query in queries or self.collection.queries]
        ranked = self._rankings.select(model, method, items).results
        return list(ranked.values())

    def search_of(self, model: ModelKey, method: Method) -> TopK | None:
        """The state of a stopped search; None if there is none for this exact collection."""
        state = self._searches.get(model, method, self._whole)
        if state is None or state.keys.shape != (len(self.collection.queries), DEPTH):
            return None
        best = state.top()
        for row in range(len(self.collection.queries)):
            places, scores = best.found(row)
            # Only documents already searched, and only finite scores: the file may have been
            # tampered with.
            if max(places, default=-1) >= best.seen or not bool(scores.isfinite().all()):
                return None
        return best if best.seen <= self.collection.survey.n else None

    def _names_documents(self, ranking: Ranking) -> bool:
        """Whether the corpus contains every document of a ranking."""
        named = np.fromiter(map(hash, ranking.document_ids), np.int64)
        # Both sides of `isin` would be sorted for every ranking.
        places = self._document_hashes.searchsorted(named)
        return bool((self._document_hashes.take(places, mode="clip") == named).all())

    @cached_property
    def _document_hashes(self) -> NDArray[np.int64]:
        """Hashes of the keys of all documents, of which there may be millions."""
        hashes = (hash(document.key) for document in self.collection.documents())
        return np.unique(np.fromiter(hashes, np.int64))

    def _item(self, query: Query) -> Key:
        return Key(self.collection.name, query.query_id, self.fingerprint)

    @property
    def _whole(self) -> Key:
        return Key(self.collection.name, "", self.fingerprint)

    def search(
        self,
        retriever: Retriever,
        model: ModelKey,
        method: Method,
        *,
        options: RunOptions = RunOptions(),
    ) -> Progress:
        """Rank the corpus for every query and store the rankings. Progress counts queries and
        documents as they are encoded.

        Raises:
            Stopped: the work was stopped; stored results are not lost.
            UserError: the corpus can't be read or changed meanwhile, a score is not finite, or the
                store can't be written; what was stored before remains.
        """
        total, saved = self.collection.survey.n, time.perf_counter()
        own_corpus = method.params["corpus"] == "own"
        best = self.search_of(model, method) or TopK(len(self.collection.queries))
        n_queries = len(self.collection.queries)
        texts_read = TextCount(n_queries + total, best.seen, options.on_progress)

        def on_block(best: TopK) -> None:
            nonlocal saved
            texts_read.reach(n_queries + best.seen)
            if time.perf_counter() - saved > _CHECKPOINT_SECONDS:
                self._searches.put(model, method, [(self._whole, Search.of(best))])
                saved = time.perf_counter()

        texts_read.add(0, 0)
        texts = [query.text for query in self.collection.queries]
        way = family_of(retriever.spec).search
        if way == "index":
            lexical = cast(LexicalRetriever, retriever)
            top = search_lexical(
                self.collection,
                lexical.k1,
                lexical.b,
                lexical.terms_of,
                own_corpus=own_corpus,
                on_text=texts_read.count,
            )
            if top is None:
                return texts_read.progress(stopped=True)
            best = top
        else:
            dense = cast(Pooled, separate(retriever))
            vectorise = stored_vectors(dense, model, self.embeddings, options, texts_read.add)
            score = scorer(
                dense,
                texts,
                vectorise if way == "vectors" else None,
                options.device_slot,
                lambda n: texts_read.add(0, n),
            )
            best = search(
                self.collection,
                score,
                own_corpus=own_corpus,
                best=best,
                block=BLOCK if retriever.device.type == "cpu" else GPU_BLOCK,
                on_block=on_block,
            )
        self._require_unchanged()
        if best.seen < total:
            self._searches.put(model, method, [(self._whole, Search.of(best))])
            return texts_read.progress(stopped=True)
        ranked = rankings(self.collection, best)
        self._require_unchanged()
        items = [self._item(query) for query in self.collection.queries]
        self._rankings.put(model, method, list(zip(items, ranked, strict=True)))
        texts_read.reach(n_queries + total)
        return texts_read.progress()

    def _require_unchanged(self) -> None:
        """Check that the corpus is still the one whose documents were numbered and scored."""
        try:
            unchanged = fingerprint(self.collection) == self.fingerprint
        except OSError:
            unchanged = False
        if not unchanged:
            raise UserError(
                f"The files of {self.collection.title} changed during the search: run it again."
            )

    def rerank(
        self,
        retriever: Joint,
        model: ModelKey,
        method: Method,
        first: Sequence[Ranking],
        *,
        options: RunOptions = RunOptions(),
    ) -> Progress:
        """Rerank a first stage's rankings with a cross-encoder and store the result. Progress
        counts queries.

        Raises:
            UserError: the corpus can't be read or the store can't be written.
        """
        candidates = {ranking.query_id: ranking for ranking in first}
        queries = {query.query_id: query for query in self.collection.queries}
        items = [self._item(query) for query in self.collection.queries]
        missing = self._rankings.missing(model, method, items, retry=True)
        texts = self.collection.texts(
            key for item in missing for key in candidates[item.item].document_ids
        )

        def compute(item: Key) -> Ranking:
            ranking = candidates[item.item]
            read = [texts[key] for key in ranking.document_ids]
            return rerank(retriever, queries[item.item].text, ranking, read)

        return compute_missing(
            self._rankings,
            model,
            method,
            items,
            compute,
            options=replace(options, retry_failed=True),
        )


def fingerprint(collection: Collection) -> str:
    """16 hexadecimal digits that hash the queries, relevance judgments and every document."""
    total = hashlib.sha256(collection.queries_digest.encode())
    for path in collection.files:
        total.update(f"{file_digest(path)}\n".encode())
    if not collection.files:
        total.update(collection.corpus_digest.encode())
    return total.hexdigest()[:16]


class CorpusItems:
    """The documents of one collection as items of results below `root`; `fingerprint` covers
    everything in the collection that their results depend on."""

    def __init__(self, root: Path, collection: Collection, fingerprint: str) -> None:
        self.root, self.collection, self.fingerprint = root, collection, fingerprint

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Every document's key, in corpus order."""
        return tuple(document.key for document in self.collection.documents())

    @cached_property
    def items(self) -> list[Key]:
        """The keys of stored results, by document."""
        return [Key(self.collection.name, key, self.fingerprint) for key in self.keys]


def complete(ranked: Sequence[Ranking], collection: Collection) -> bool:
    """Whether every query has a ranking."""
    return len(ranked) == len(collection.queries)
