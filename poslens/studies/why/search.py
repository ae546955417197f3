"""Searches a corpus for single queries: for explanations of ranks, and for the page's ranking, from
which users select a target document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Wanted
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.datasets import Collection
from poslens.attribution.datasets.corpus import Document, Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.chunks import WHOLE
from poslens.attribution.evaluation.document_index import NOT_FOUND, LexicalIndex, VectorIndex
from poslens.attribution.evaluation.scorers import scorer
from poslens.attribution.evaluation.search import BLOCK, GPU_BLOCK
from poslens.attribution.evaluation.why import Searched
from poslens.attribution.evaluation.why_causes import why_method
from poslens.attribution.interventions.relocation import tokens_of
from poslens.attribution.retrievers.base import Pooled, Retriever, separate
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.lexical import LexicalRetriever
from poslens.attribution.retrievers.scoring import read_texts
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Method, Side
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.embeddings import recent_texts
from poslens.cache.kinds.study_items import explanations
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import Compute
from poslens.compute.runs import Job, Report, Run
from poslens.studies.audit.index import IndexBuilder, SearchIndex, TextEncoder
from poslens.studies.ranking.service import needs_first_stage, stored_ranking
from poslens.studies.why.summary import WhyCorpus
from poslens.study import Asked

MEMORY = 1 << 30
"""Maximum bytes of documents and vectors that stay in memory between jobs."""
_MAX_TEXT = 256 << 20
"""Maximum characters of a corpus whose texts stay in memory; larger ones are read again."""


def require_ranking(spec: RetrieverSpec) -> None:
    """Check that the model can rank a whole corpus.

    Raises:
        UserError: the model is a cross-encoder, which reranks what another model retrieves.
    """
    if needs_first_stage(spec):
        raise UserError(
            f"{spec.name} only reranks documents that another model retrieves: choose the model "
            "that retrieves them."
        )


@dataclass(frozen=True)
class Corpus:
    """The documents of a collection, and the index of `model`, whose vectors are stored below
    `root`. `index` is None for late interaction and SPLADE, which score all documents for each
    batch of queries. `held` are the texts, empty if they exceed `_MAX_TEXT`. `own` has, by query
    id, the number of the document with the same id, which that query must not retrieve. `size` is
    in bytes."""

    root: Path
    model: ModelKey
    collection: Collection
    ids: tuple[str, ...]
    held: tuple[str, ...]
    own: Mapping[str, int]
    index: SearchIndex | None
    size: int

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        """Each document's number by its id."""
        return {key: number for number, key in enumerate(self.ids)}

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """The texts of the documents with these numbers.

        Raises:
            UserError: the corpus cannot be read.
        """
        if self.held:
            return [self.held[number] for number in numbers]
        texts = self.collection.texts(self.ids[number] for number in numbers)
        return [texts[self.ids[number]] for number in numbers]


def opened(
    compute: Compute,
    key: ModelKey,
    retriever: Retriever,
    collection: Collection,
    options: RunOptions = RunOptions(),
) -> Corpus:
    """A corpus with the model's index, cached. Documents without stored vectors are encoded.

    Raises:
        Stopped: the run was stopped; vectors computed so far are stored.
        UserError: the corpus cannot be read.
    """

    def built() -> Corpus:
        ids: list[str] = []
        held: list[str] = []
        own: dict[str, int] = {}
        characters = 0
        for number, document in enumerate(collection.documents()):
            ids.append(document.key)
            characters += len(document.text)
            if characters <= _MAX_TEXT:
                held.append(document.text)
            if (row := collection.own_query(document)) is not None:
                own[collection.queries[row].query_id] = number
        index: SearchIndex | None = None
        if family_of(retriever.spec).search in ("vectors", "index"):
            encoder = TextEncoder(compute.root, retriever, key, options)
            index = IndexBuilder(encoder, collection, WHOLE).index("original", len(ids))
        width = getattr(retriever, "width", 0) if isinstance(index, VectorIndex) else 0
        texts = tuple(held) if len(held) == len(ids) else ()
        weight = sum(map(len, texts)) + 4 * width * len(ids) + 100 * len(ids)
        return Corpus(compute.root, key, collection, tuple(ids), texts, own, index, weight)

    return _corpora.get((str(compute.root), key, collection.digest), built)


_corpora: LRUCache[Corpus] = LRUCache(MEMORY, weigh=lambda corpus: corpus.size)


class Searcher:
    """Searches a corpus for one query at a time. `prepare` encodes a batch of queries, or, without
    an index, scores all documents for them in one pass."""

    def __init__(self, corpus: Corpus, retriever: Retriever, options: RunOptions) -> None:
        self._corpus, self._retriever, self._options = corpus, retriever, options
        self._scanned: dict[str, Array] = {}

    @property
    def indexed(self) -> bool:
        """Whether the corpus has an index."""
        return self._corpus.index is not None

    def prepare(self, queries: Sequence[str]) -> None:
        """Encode these queries and store their vectors, or score all documents for them.

        Raises:
            Stopped: the run was stopped.
            UserError: the corpus cannot be read.
        """
        asked = list(dict.fromkeys(queries))
        if isinstance(self._corpus.index, VectorIndex):
            self._stored(asked, self._options)
        if self.indexed:
            return
        retriever = cast(Pooled, separate(self._retriever))
        score = scorer(retriever, asked, None, self._options.device_slot)
        total = len(self._corpus.ids)
        scores = np.full((len(asked), total), -np.inf, dtype=np.float32)
        rows = BLOCK if retriever.device.type == "cpu" else GPU_BLOCK
        documents, done = self._corpus.collection.documents(), 0
        while block := [document.text for document in islice(documents, rows)]:
            checkpoint()
            values = score(range(len(asked)), block)
            scores[:, done : done + len(block)] = values.float().cpu().numpy()
            done += len(block)
            self._options.on_progress(Progress(total, done, done, 0, 0.0))
        self._scanned = dict(zip(asked, scores, strict=True))

    def search(self, query: str, query_id: str = "") -> Searched:
        """The scores of all documents for a query. A document with the same id as the query
        (`query_id`) is excluded if the data set requires it.

        Raises:
            UserError: the model reads no word of the query.
        """
        corpus = self._corpus
        scores, score = self._scores(query)
        if query_id in corpus.own:
            scores = scores.copy()
            scores[corpus.own[query_id]] = -np.inf

        tokens = partial(tokens_of, self._retriever, query)
        return Searched(scores, score, tokens, corpus.ids, corpus.texts)

    def _scores(self, query: str) -> tuple[Array, Callable[[Sequence[str]], Array]]:
        index, retriever = self._corpus.index, self._retriever
        if isinstance(index, LexicalIndex):
            lexical = cast(LexicalRetriever, retriever)
            words = lexical.terms_of(query)
            if not words:
                raise UserError("The query has no words to search for: enter at least one.")
            statistics = index.statistics
            return _array(index.scores(words)), lambda texts: lexical.scores(
                query, texts, statistics
            )
        pooled = cast(Pooled, separate(retriever))
        if isinstance(index, VectorIndex):
            score = scorer(pooled, [query], self._encode)
            scores = _array(index.scores(self._encode([query], "query")[0]))
        else:
            score = scorer(pooled, [query])
            if query not in self._scanned:
                self.prepare([query])
            scores = self._scanned[query]
        return scores, lambda texts: _array(score([0], list(texts))[0].float().cpu().numpy())

    def _encode(self, texts: Sequence[str], side: Side) -> Tensor:
        """The vectors [n, dimensions] of texts. Those of queries are stored, those of changed
        documents are not."""
        corpus, pooled = self._corpus, separate(self._retriever)
        recent = recent_texts(corpus.root, corpus.model, pooled)
        vectors = self._stored(texts) if side == "query" else {}
        new = [text for text in texts if text not in vectors]
        for batch, read in read_texts(pooled, new, side, cached=recent):
            vectors |= zip(batch, cast(Tensor, read).float().cpu(), strict=True)
        return torch.stack([vectors[text] for text in texts])

    def _stored(
        self, queries: Sequence[str], options: RunOptions = RunOptions()
    ) -> dict[str, Tensor]:
        """The vector [H] of each query that the model can read, computed once and stored."""
        encoder = TextEncoder(self._corpus.root, self._retriever, self._corpus.model, options)
        return encoder.vectors("query", queries)[0]


def _array(scores: Any) -> Array:
    return np.asarray(scores, dtype=np.float32)


# -- rankings of one query -------------------------------------------------------------------------

_SEARCH = Method("search", {"version": 1})


@dataclass(frozen=True)
class RankedDocument:
    """A document in the ranking of a query; `wanted` if it should be retrieved."""

    rank: int
    document_id: str
    score: float
    wanted: bool
    text: str


@dataclass(frozen=True)
class QueryRanking:
    """The first documents of a ranking of `total` documents, and the target documents and the
    selected one below them. Those that are not found are missing."""

    documents: tuple[RankedDocument, ...]
    total: int


_searched: LRUCache[tuple[Corpus, Searched]] = LRUCache(64)


def search_job(
    compute: Compute, spec: RetrieverSpec, collection: Collection, query: str, query_id: str = ""
) -> Job:
    """A job that searches the corpus for one query; progress counts documents. The ranking is kept
    in memory only.

    Raises:
        UserError: the model's files are not on this machine, or it has no ranking of the whole
            corpus.
    """
    require_ranking(spec)
    model = compute.identify(spec)
    key = _key(compute, spec, collection, query, query_id)
    total = collection.survey.n

    def work(run: Run, report: Report) -> Progress:
        retriever = compute.retriever(model)
        options = compute.run_options(spec, run, report)
        run.stage = "Reading documents"
        corpus = opened(compute, model.key, retriever, collection, options)
        searcher = Searcher(corpus, retriever, options)
        searcher.prepare([query])
        with options.device_slot():
            _searched.keep(key, (corpus, searcher.search(query, query_id)))
        return Progress(total, total, 0, 0, 0.0)

    return compute.model_job(
        model,
        _SEARCH,
        f"{collection.digest} {query_id} {query}",
        total,
        work,
        lambda other: search_job(other, spec, collection, query, query_id),
        n_done=lambda: total if _searched.find(key) is not None else 0,
        # The log must not contain typed queries.
        doing=f"search for {query_id}" if query_id else "search",
    )


def ranking(
    compute: Compute,
    spec: RetrieverSpec,
    collection: Collection,
    query: str,
    n: int,
    wanted: Wanted[str] = (),
    query_id: str = "",
    document: str = "",
) -> QueryRanking | None:
    """The first `n` documents, the `wanted` ones and `document`; None until the query has been
    searched for."""
    cached = _searched.find(_key(compute, spec, collection, query, query_id))
    if cached is None:
        return None
    corpus, searched = cached
    numbers = searched.best(n)
    ranks = dict(zip(numbers, range(1, n + 1), strict=False))
    for document_id in (*wanted, document):
        number = corpus.number_of.get(document_id)
        if number is not None and number not in ranks and searched.found(number):
            ranks[number] = searched.rank(float(searched.scores[number]), number)
    ordered = sorted(ranks, key=lambda number: ranks[number])
    rows = tuple(
        RankedDocument(
            ranks[number],
            searched.ids[number],
            float(searched.scores[number]),
            searched.ids[number] in wanted,
            text,
        )
        for number, text in zip(ordered, searched.texts(ordered), strict=True)
    )
    return QueryRanking(rows, len(searched.ids))


def known_ranking(
    compute: Compute, asked: Asked[WhyCorpus], query: Query, n: int, document: str = ""
) -> QueryRanking | None:
    """The ranking of a query of the data set from stored results: the first `n` documents and
    `document` from the results of the Ranking page, and target documents below them from their
    explanations. None if one of these is not stored.

    Raises:
        UserError: the corpus cannot be read.
    """
    collection = asked.corpus.collection
    stored = stored_ranking(compute, asked.spec, collection, query)
    if stored is None:
        return None
    shown = {*query.pairs, document}
    if document not in ("", *query.pairs, *stored.document_ids):
        return None
    scores = zip(stored.document_ids, stored.scores, strict=True)
    rows = [
        (rank, ranked, float(score))
        for rank, (ranked, score) in enumerate(scores, start=1)
        if rank <= n or ranked in shown
    ]
    items = [
        item
        for item in asked.corpus.items
        if item.query_id == query.query_id and item.document_id not in stored.document_ids
    ]
    model = compute.identify(asked.spec)
    method = why_method(asked.settings.top)
    below = explanations(compute.root).select(model.key, method, items).results.values()
    if len(below) < len(items):
        return None
    rows += sorted(
        (explanation.rank, explanation.document_id, explanation.score)
        for explanation in below
        if explanation.rank != NOT_FOUND and explanation.score is not None
    )
    texts = collection.texts(ranked for _, ranked, _ in rows)
    documents = tuple(
        RankedDocument(rank, ranked, score, ranked in query.pairs, texts[ranked])
        for rank, ranked, score in rows
    )
    return QueryRanking(documents, collection.survey.n)


def _key(
    compute: Compute, spec: RetrieverSpec, collection: Collection, query: str, query_id: str
) -> tuple[object, ...]:
    # Two queries can have the same text, but each skips the document with its own id.
    key = compute.identify(spec).key
    return (str(compute.root), key, collection.digest, query, query_id)


def named_document(collection: Collection, name: str) -> Document:
    """The document with this id.

    Raises:
        UserError: the corpus lacks it.
    """
    first = ""
    for document in collection.documents():
        if name in (document.key, document.document_id):
            return document
        first = first or document.key
    raise UserError(
        f"{collection.title} has no document {name[:80]!r}: use an id of the corpus, such as "
        f"{first[:80]!r}."
    )
