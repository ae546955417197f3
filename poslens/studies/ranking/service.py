"""Rankings of data sets by models: computed once, stored, measured. No Streamlit here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from poslens.attribution import datasets
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.datasets.corpus import Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.position_groups import GroupedRanking, grouped
from poslens.attribution.evaluation.ranking_measures import NDCG, Evaluation, evaluate
from poslens.attribution.evaluation.recommendation import MARGIN
from poslens.attribution.evaluation.sample_size import LEVEL
from poslens.attribution.evaluation.search import DEPTH, Ranking
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers import lexical, limits
from poslens.attribution.retrievers.base import Joint, embedded
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.endpoint_address import address_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import ROUNDING, Method, Provenance, TextPair
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.rankings import RankingStore, complete, fingerprint, ranking_method
from poslens.cache.lru_cache import LRUCache
from poslens.compute import provenance
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.compute.runs import Job, Report, Run
from poslens.paired import ItemMeasure, MeasuredModel

_KEPT = 16

Store = TypeVar("Store")


@dataclass(frozen=True)
class RankingSetup:
    """The task of a ranking: a collection, which each query searches completely or only in its own
    sub-corpus, and the first stage that cross-encoders rerank.

    All queries are ranked; those in `left_out` are not measured, and `selection` gives the reason.
    """

    collection: Collection
    own_corpus: bool = False
    first_stage: RetrieverSpec | None = None
    left_out: frozenset[str] = frozenset()
    selection: str = ""

    @cached_property
    def queries(self) -> tuple[Query, ...]:
        """The measured queries."""
        return tuple(q for q in self.collection.queries if q.query_id not in self.left_out)

    def narrowed(self, pairs: Sequence[TextPair], selection: str) -> RankingSetup:
        """The same task restricted to queries all of whose pairs are among `pairs`; `selection`
        describes these pairs."""
        selected = {pair.pair_id for pair in pairs}
        queries = self.collection.queries
        left_out = (
            query.query_id for query in queries if not selected.issuperset(query.pairs.values())
        )
        return replace(self, left_out=frozenset(left_out), selection=selection)


@dataclass(frozen=True)
class Measured(ABC):
    """Measured rankings of a collection's queries; `read` is the share of the evidence that was
    read, by query id, if known."""

    setup: RankingSetup
    evaluation: Evaluation
    rankings: tuple[Ranking, ...]
    read: Mapping[str, float]

    @property
    def collection(self) -> Collection:
        """What was searched."""
        return self.setup.collection

    @cached_property
    def by_query(self) -> dict[str, Ranking]:
        """The rankings by query id."""
        return {ranking.query_id: ranking for ranking in self.rankings}

    @cached_property
    def by_item(self) -> MeasuredModel:
        """nDCG@10 by query, for comparing rankings of one collection."""
        corpus = fingerprint(self.collection)
        documents = {(query.query_id, corpus): query.document for query in self.setup.queries}
        gains = np.asarray(self.evaluation.per_query[NDCG], dtype=np.float64)[:, None]
        rows = dict(zip(documents, gains, strict=True))
        measure = ItemMeasure(
            NDCG, "queries", MARGIN, rows, documents, largest=1.0, label=itemgetter(0)
        )
        return MeasuredModel(self.name, (measure,))

    @cached_property
    def by_group(self) -> GroupedRanking | None:
        """The measures of each group of queries; None for a collection without groups."""
        groups = self.collection.groups
        if groups is None:
            return None
        return grouped(self.evaluation.per_query, self.setup.queries, groups, self.read)

    @property
    def name(self) -> str:
        """The name in figures and tables."""
        return self.evaluation.model

    @property
    def selection(self) -> str:
        """Which queries and documents of the collection were used, as text."""
        parts = (
            "documents in the query's language" if self.collection.monolingual else "",
            self.collection.drawn,
            self.setup.selection,
        )
        return ", ".join(filter(None, parts))

    @abstractmethod
    def provenance(self) -> Provenance:
        """Everything needed to reproduce the ranking."""


@dataclass(frozen=True)
class Ranked(Measured):
    """A model's measured rankings."""

    model: ModelIdentity
    method: Method

    def provenance(self) -> Provenance:
        model = self.model
        if self.setup.own_corpus or self.collection.drawn:
            model = replace(model, spec=lexical.searching(model.spec))
        # The number of truncated documents is not stored with a ranking.
        return provenance.of_model(
            model,
            self.method,
            self.collection.name,
            n_queries=self.evaluation.n,
            n_documents=self.collection.survey.n,
            selection=self.selection,
            interval=provenance.resampled_of(self.evaluation.estimates.items()),
        )


def psi_verdict(permuted: float, p: float, n_queries: int) -> str:
    """A sentence on what can be concluded from PSI, its mean under permutation and its p value."""
    if permuted < ROUNDING:
        return f"{NDCG} is the same for all queries, so PSI can't show an effect of position."
    if p < LEVEL:
        return (
            "Rankings differ between positions of the evidence, which may also be because queries "
            "differ in difficulty: Position effect moves the evidence itself."
        )
    return (
        f"With {counted(n_queries, 'query')}, this can't be distinguished from the PSI of a model "
        "that ignores position, which is no evidence that this model ignores it."
    )


def collection_of(data: DataSet) -> Collection:
    """The collection of a data set: with its whole corpus if the data set is known by name; for an
    upload, the documents of its pairs.

    Raises:
        UserError: it has no relevance judgments, or its files cannot be read.
    """
    if data.name in datasets.names():
        return datasets.collection(data.name)
    # An upload's name contains a digest of its contents.
    return _uploads.get(data.name, lambda: datasets.from_pairs(data))


def is_judged(data: DataSet) -> bool:
    """Whether the data set's format includes relevance judgments, as every upload does.

    Raises:
        UserError: its files cannot be read.
    """
    return data.name not in datasets.names() or datasets.judged(data.name)


def searched(data: DataSet) -> Collection:
    """The corpus of a data set and its queries, with or without judgments.

    Raises:
        UserError: its files cannot be read.
    """
    return collection_of(data) if is_judged(data) else datasets.corpus_of(data.name)


def monolingual(collection: Collection) -> Collection:
    """The collection in which each query searches the documents of its own language, cached.

    Raises:
        UserError: no query has a relevant document in its language.
    """
    return _monolingual.get(collection.digest, collection.by_language)


_uploads: LRUCache[Collection] = LRUCache(_KEPT)
_monolingual: LRUCache[Collection] = LRUCache(4)
_stores: LRUCache[Any] = LRUCache(2 * _KEPT)
# A page measures a whole grid of calibrated models at each rerun.
_evaluations: LRUCache[Ranked] = LRUCache(96)


def needs_first_stage(spec: RetrieverSpec) -> bool:
    """Whether a model can only rerank another model's results."""
    return family_of(spec).search == "rerank"


def method_for(compute: Compute, spec: RetrieverSpec, setup: RankingSetup) -> Method:
    """The ranking method of `spec`.

    Raises:
        UserError: a cross-encoder has no first stage, or its first stage needs one too.
    """
    if not needs_first_stage(spec):
        return ranking_method(setup.own_corpus)
    first = setup.first_stage
    if first is None:
        raise UserError(
            f"{spec.name} only reranks documents that another model retrieves, so its rankings "
            "depend on that model, too: Ranking measures them with a first stage."
        )
    if needs_first_stage(first):
        raise UserError(
            f"{first.name} reads each query together with each document: select another kind of "
            f"model as the first stage of {spec.name}."
        )
    identity = compute.identify(first)
    return ranking_method(setup.own_corpus, f"{first.name}@{identity.key.fingerprint}")


def job(compute: Compute, spec: RetrieverSpec, setup: RankingSetup) -> Job:
    """A job that computes missing rankings; progress counts the units of the current stage.

    Raises:
        UserError: the model's files are not on this machine, or it lacks a first stage.
    """
    model, method = compute.identify(spec), method_for(compute, spec, setup)

    def work(run: Run, report: Report) -> Progress:
        store = store_of(RankingStore, compute, setup.collection)

        def read(identity: ModelIdentity, progress: Progress) -> Progress:
            if progress.stopped or not store.evidence_missing(identity.key):
                return progress
            run.stage = "Locating the evidence in the tokens"
            return store.read_evidence(
                compute.retriever(identity),
                identity.key,
                options=compute.run_options(identity.spec, run, report),
            )

        def search(identity: ModelIdentity, how: Method) -> Progress:
            if complete(store.select(identity.key, how), setup.collection):
                return read(identity, run.progress)
            run.stage = f"Encoding texts with {identity.spec.name}"
            progress = store.search(
                compute.retriever(identity),
                identity.key,
                how,
                options=compute.run_options(identity.spec, run, report),
            )
            return read(identity, progress)

        if not needs_first_stage(spec) or setup.first_stage is None:
            return search(model, method)
        first, how = compute.identify(setup.first_stage), ranking_method(setup.own_corpus)
        candidates = store.select(first.key, how)
        if not complete(candidates, setup.collection):
            progress = search(first, how)
            if progress.stopped:
                return progress
            candidates = store.select(first.key, how)
        run.stage = "Reranking queries"
        progress = store.rerank(
            cast(Joint, embedded(compute.retriever(model))),
            model.key,
            method,
            candidates,
            options=compute.run_options(spec, run, report),
        )
        return read(model, progress)

    def n_done() -> int:
        return n_queries if _complete_rankings(compute, model, method, setup.collection) else 0

    n_queries = len(setup.collection.queries)
    scope, again = setup.collection.name, partial(job, spec=spec, setup=setup)
    ranking = compute.model_job(
        model, method, scope, n_queries, work, again, n_done=n_done, doing="ranking"
    )
    if ranking.sending is None or setup.first_stage is None or not needs_first_stage(spec):
        return ranking
    # The texts that a reranker on an endpoint gets are known once its first stage is complete.
    first = job(compute, setup.first_stage, setup)
    if not first.has_left():
        return ranking
    depth = min(DEPTH, setup.collection.survey.n)
    requests = n_queries * -(-depth // address_of(spec).batch)
    sending = replace(
        ranking.sending,
        adaptive=first.sends,
        limit=f"at most {counted(n_queries * depth, 'text')} in {counted(requests, 'request')} "
        f"(up to {counted(depth, 'document')} for each query); {first.label} selects them first",
    )
    return replace(ranking, sending=sending, first=None if first.sends else first)


def ranked(compute: Compute, spec: RetrieverSpec, setup: RankingSetup) -> Ranked | None:
    """The measured stored rankings; None while they are incomplete, or while the share of evidence
    that the model reads has not been determined although its files are on this machine."""
    model, method = compute.identify(spec), method_for(compute, spec, setup)
    store = store_of(RankingStore, compute, setup.collection)
    key = (
        str(compute.root),
        spec.name,  # two specs may share a model
        model.key.fingerprint,
        repr(method),
        setup.collection.name,
        store.fingerprint,
        setup.left_out,
        setup.selection,
    )
    if (ranked := _evaluations.find(key)) is not None:
        return ranked
    rankings = _complete_rankings(compute, model, method, setup.collection)
    if rankings is None:
        return None
    read = {} if limits.unknown(spec) else store.evidence_read(model.key)
    evaluation = evaluate(
        spec.name,
        rankings,
        setup.collection,
        own_corpus=setup.own_corpus,
        read=read,
        queries=setup.queries,
    )
    return _evaluations.keep(key, Ranked(setup, evaluation, tuple(rankings), read, model, method))


def _complete_rankings(
    compute: Compute, model: ModelIdentity, method: Method, collection: Collection
) -> Sequence[Ranking] | None:
    """All stored rankings; None while any is missing, or while the share of the evidence that the
    model reads could be computed but is not."""
    store = store_of(RankingStore, compute, collection)
    rankings = store.select(model.key, method)
    if not complete(rankings, collection):
        return None
    if store.evidence_missing(model.key) and not model.stored_only:
        return None
    return rankings


def stored_ranking(
    compute: Compute, spec: RetrieverSpec, collection: Collection, query: Query
) -> Ranking | None:
    """The stored ranking of one query over the whole collection.

    Raises:
        UserError: the model reranks another model's results, or the corpus cannot be read.
    """
    method = method_for(compute, spec, RankingSetup(collection))
    stored = store_of(RankingStore, compute, collection).select(
        compute.identify(spec).key, method, [query]
    )
    return stored[0] if stored else None


def stored_rankings(
    compute: Compute, spec: RetrieverSpec, setup: RankingSetup
) -> dict[str, Ranking] | None:
    """The stored rankings of all queries by id; None while any is missing.

    Raises:
        UserError: the model needs a first stage, or the corpus cannot be read.
    """
    method = method_for(compute, spec, setup)
    stored = store_of(RankingStore, compute, setup.collection).select(
        compute.identify(spec).key, method
    )
    if not complete(stored, setup.collection):
        return None
    return {ranking.query_id: ranking for ranking in stored}


def store_of(
    kind: Callable[[Path, Collection], Store], compute: Compute, collection: Collection
) -> Store:
    """The store of a collection of this kind, cached because its fingerprint and keys require a
    pass over the corpus."""
    key = (kind, str(compute.root), collection.name, collection.digest)
    store: Store = _stores.get(key, lambda: kind(compute.root, collection))
    return store
