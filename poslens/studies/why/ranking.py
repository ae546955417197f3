"""The ranking of one query, from which a target document is selected."""

from __future__ import annotations

from collections.abc import Collection as Wanted
from dataclasses import dataclass

from poslens.attribution.datasets import Collection
from poslens.attribution.datasets.corpus import Query
from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.why import Searched
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.study_items import explanations
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.runs import Job, Report, Run
from poslens.studies.ranking.service import stored_ranking
from poslens.studies.why.search import Corpus, Searcher, opened, require_ranking
from poslens.studies.why.summary import Misses

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
    """The first documents of a ranking of `total` documents, and the target documents below them.
    Target documents that are not found are missing."""

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
    key = _key(compute, spec, collection, query)
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
        f"{collection.digest} {query}",
        total,
        work,
        lambda other: search_job(other, spec, collection, query, query_id),
        n_done=lambda: total if _searched.find(key) is not None else 0,
        doing="search",
    )


def ranking(
    compute: Compute,
    spec: RetrieverSpec,
    collection: Collection,
    query: str,
    n: int,
    wanted: Wanted[str] = (),
) -> QueryRanking | None:
    """The first `n` documents and the `wanted` ones; None until the query has been searched for."""
    cached = _searched.find(_key(compute, spec, collection, query))
    if cached is None:
        return None
    corpus, searched = cached
    numbers = searched.best(n)
    ranks = dict(zip(numbers, range(1, n + 1), strict=False))
    for document_id in wanted:
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


def known_ranking(compute: Compute, asked: Misses, query: Query, n: int) -> QueryRanking | None:
    """The ranking of a query of the data set from stored results: the first `n` documents from the
    results of the Ranking page, and target documents below them from their explanations. None if
    one of these is not stored.

    Raises:
        UserError: the corpus cannot be read.
    """
    collection = asked.corpus.collection
    stored = stored_ranking(compute, asked.spec, collection, query)
    if stored is None:
        return None
    scores = zip(stored.document_ids, stored.scores, strict=True)
    rows = [
        (rank, document, float(score))
        for rank, (document, score) in enumerate(scores, start=1)
        if rank <= n or document in query.pairs
    ]
    items = [
        item
        for item in asked.corpus.items
        if item.query_id == query.query_id and item.document_id not in stored.document_ids
    ]
    model = compute.identify(asked.spec)
    below = explanations(compute.root).select(model.key, asked.method, items).results.values()
    if len(below) < len(items):
        return None
    rows += sorted(
        (explanation.rank, explanation.document_id, explanation.score)
        for explanation in below
        if explanation.rank != NOT_FOUND and explanation.score is not None
    )
    texts = collection.texts(document for _, document, _ in rows)
    documents = tuple(
        RankedDocument(rank, document, score, document in query.pairs, texts[document])
        for rank, document, score in rows
    )
    return QueryRanking(documents, collection.survey.n)


def _key(
    compute: Compute, spec: RetrieverSpec, collection: Collection, query: str
) -> tuple[object, ...]:
    model = compute.identify(spec)
    return (str(compute.root), model.key, collection.digest, query)
