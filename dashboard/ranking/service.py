"""Rankings of data sets by models: computed once, kept, measured. No Streamlit here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import pandas as pd

from attribution import datasets
from attribution.curves.positions import length_bucket
from attribution.datasets import Collection, DataSet
from attribution.datasets.corpus import Query
from attribution.errors import UserError
from attribution.evaluation.position_groups import GroupedRanking, grouped
from attribution.evaluation.ranking_measures import (
    NDCG,
    SUCCESS,
    SUCCESS_OF_PAIRS,
    TOP,
    Evaluation,
    EvidenceProfile,
    agresti_coull,
    evaluate,
    success_of_pairs,
)
from attribution.evaluation.search import Ranking
from attribution.retrievers.base import Joint
from attribution.retrievers.detect import family_of
from attribution.retrievers.specs import RetrieverSpec
from attribution.types import Method, Provenance, TextPair
from cache.jobs.loop import Progress
from cache.kinds.rankings import RankingStore, complete, ranking_method
from cache.recent import Recent
from dashboard.core import provenance
from dashboard.core.compute import Compute, run_key
from dashboard.core.provenance import ModelIdentity
from dashboard.core.runs import Job, Report, Run

OVERALL, READ_WHOLE = "all lengths", "evidence read whole"
WITHIN_LANGUAGES = "each query among the documents of its language"
_KEPT = 16


@dataclass(frozen=True)
class Setup:
    """What is searched and how: a collection, whole or each query in its own corpus of it, and
    what cross-encoders rerank.

    All queries are ranked; those of `left_out` are not measured, and `selection` says why.
    """

    collection: Collection
    own_corpus: bool = False
    first_stage: RetrieverSpec | None = None
    left_out: frozenset[str] = frozenset()
    selection: str = ""

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries that are measured."""
        return tuple(q for q in self.collection.queries if q.query_id not in self.left_out)

    def narrowed(self, pairs: Sequence[TextPair], selection: str) -> Setup:
        """The same over the queries all of whose pairs are among `pairs`; `selection` says in
        words which pairs these are."""
        kept = {pair.pair_id for pair in pairs}
        queries = self.collection.queries
        left_out = (
            query.query_id for query in queries if not kept.issuperset(query.pairs.values())
        )
        return replace(self, left_out=frozenset(left_out), selection=selection)


@dataclass(frozen=True)
class Measured(ABC):
    """Rankings of a collection's queries, measured; `read` is the share of the evidence that was
    read, by query id, where that is known."""

    setup: Setup
    evaluation: Evaluation
    rankings: tuple[Ranking, ...]
    read: Mapping[str, float]
    by_query: dict[str, Ranking] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_query", {one.query_id: one for one in self.rankings})

    @cached_property
    def by_group(self) -> GroupedRanking | None:
        """The measures of each of the collection's groups of queries, where it has any."""
        groups = self.setup.collection.groups
        if groups is None:
            return None
        return grouped(self.evaluation.per_query, self.setup.queries, groups, self.read)

    @property
    def name(self) -> str:
        """What figures and tables call it."""
        return self.evaluation.model

    @property
    def selection(self) -> str:
        """Which queries and documents of the collection it is over, in words."""
        setup = self.setup
        parts = (
            WITHIN_LANGUAGES if setup.collection.monolingual else "",
            setup.collection.drawn,
            setup.selection,
        )
        return ", ".join(filter(None, parts))

    @abstractmethod
    def provenance(self) -> Provenance:
        """Everything needed to rank again."""


@dataclass(frozen=True)
class Ranked(Measured):
    """A model's rankings, measured."""

    model: ModelIdentity
    method: Method

    def provenance(self) -> Provenance:
        """See `Measured`."""
        collection = self.setup.collection
        return provenance.of_ranking(
            self.model,
            self.method,
            self.evaluation,
            collection.name,
            collection.survey.n,
            self.selection,
        )


def group_provenance(found: Sequence[Measured]) -> list[Provenance]:
    """Where numbers of groups of queries come from: their intervals resample documents."""
    return [
        provenance.with_interval(one.provenance(), one.by_group.harmonic)
        for one in found
        if one.by_group is not None
    ]


def collection_of(data: DataSet) -> Collection:
    """The collection of a data set: with its whole corpus where the data set is known by name, of
    an upload the documents of its pairs.

    Raises:
        UserError: it judges no relevance, or its files are not as they should be.
    """
    if data.name in datasets.names():
        return datasets.collection(data.name)
    # An upload's name holds a digest of its contents.
    return _uploads.get(data.name, lambda: datasets.from_pairs(data))


def monolingual(collection: Collection) -> Collection:
    """The collection with each query put to the documents of its own language, made once.

    Raises:
        UserError: no query has a relevant document in its language.
    """
    # What is kept holds its documents' stream, and a collection its own, so an id is not reused.
    return _monolingual.get(id(collection), lambda: (collection, collection.by_language()))[1]


def has_pools(collection: Collection) -> bool:
    """Whether one corpus is searched by queries of several languages."""
    return len(collection.parts) == 1 and len(collection.languages) > 1


_uploads: Recent[Collection] = Recent(_KEPT)
_monolingual: Recent[tuple[Collection, Collection]] = Recent(4)
_stores: Recent[RankingStore] = Recent(_KEPT)
# A grid of calibrated models is measured as a whole, at each rerun of its page.
_evaluations: Recent[Ranked] = Recent(96)


def needs_first_stage(spec: RetrieverSpec) -> bool:
    """Whether a model can only rerank what another one found."""
    return family_of(spec).search == "rerank"


def method_for(compute: Compute, spec: RetrieverSpec, setup: Setup) -> Method:
    """How `spec` ranks.

    Raises:
        UserError: a cross-encoder without a first stage, or one whose first stage is another.
    """
    if not needs_first_stage(spec):
        return ranking_method(setup.own_corpus)
    first = setup.first_stage
    if first is None or needs_first_stage(first):
        raise UserError(
            f"{spec.name} reads each query with each document: choose another kind of model as its "
            "first stage."
        )
    known = compute.identify(first)
    return ranking_method(setup.own_corpus, f"{first.name}@{known.key.fingerprint}")


def job(compute: Compute, spec: RetrieverSpec, setup: Setup) -> Job:
    """Rank what is missing; progress counts what the stage at hand is over.

    Raises:
        UserError: the model's files are not here, or it lacks a first stage.
    """
    model, method = compute.identify(spec), method_for(compute, spec, setup)

    def work(run: Run, report: Report) -> Progress:
        store = _store(compute, setup.collection)

        def read(one: ModelIdentity, progress: Progress) -> Progress:
            if progress.stopped or not store.evidence_missing(one.key):
                return progress
            run.stage = "Looking what is read of the evidence"
            return store.read_evidence(
                compute.retriever(one),
                one.key,
                should_stop=lambda: run.stopping,
                on_progress=report,
                turn=compute.turns(one.spec),
            )

        def search(one: ModelIdentity, how: Method) -> Progress:
            if complete(store.select(one.key, how), setup.collection):
                return read(one, run.progress)
            run.stage = f"Searching with {one.spec.name}"
            progress = store.search(
                compute.retriever(one),
                one.key,
                how,
                should_stop=lambda: run.stopping,
                on_progress=report,
                turn=compute.turns(one.spec),
            )
            return read(one, progress)

        if not needs_first_stage(spec) or setup.first_stage is None:
            return search(model, method)
        first, how = compute.identify(setup.first_stage), ranking_method(setup.own_corpus)
        candidates = store.select(first.key, how)
        if not complete(candidates, setup.collection):
            progress = search(first, how)
            if progress.stopped:
                return progress
            candidates = store.select(first.key, how)
        run.stage = "Reranking"
        progress = store.rerank(
            cast(Joint, compute.retriever(model)),
            model.key,
            method,
            candidates,
            should_stop=lambda: run.stopping,
            on_progress=report,
            turn=compute.turns(spec),
        )
        return read(model, progress)

    def n_done() -> int:
        kept = _store(compute, setup.collection).select(model.key, method)
        return n_queries if complete(kept, setup.collection) else 0

    n_queries = len(setup.collection.queries)
    key = run_key(model, method, setup.collection.name)
    return compute.job(
        key,
        spec.name,
        n_queries,
        work,
        n_done=n_done,
        doing="ranking",
        count=compute.cost(spec, lambda other: job(other, spec, setup)),
    )


def job_of_all(compute: Compute, specs: Sequence[RetrieverSpec], setup: Setup) -> Job:
    """Rank with each of `specs` that has no rankings, one after the other; progress counts models.
    Each has a run of its own, which says how far it is and what went wrong; one that is stopped by
    itself makes way for the next.

    Raises:
        UserError: a model's files are not here, or it lacks a first stage.
    """

    models = " ".join(sorted(compute.identify(spec).key.fingerprint for spec in specs))
    methods = " ".join(sorted({repr(method_for(compute, spec, setup)) for spec in specs}))
    key = ("all models", models, methods, setup.collection.name, "")
    wanted = {spec.name: (spec, job(compute, spec, setup)) for spec in specs}

    def missing() -> list[tuple[str, Job]]:
        return [
            (name, one)
            for name, (spec, one) in wanted.items()
            if ranked(compute, spec, setup) is None
        ]

    parts = tuple(one for _, one in wanted.values())
    return compute.one_by_one(key, "All models", parts, missing, doing="ranking")


def ranked(compute: Compute, spec: RetrieverSpec, setup: Setup) -> Ranked | None:
    """The stored rankings, measured; None while they are not complete, or while it is not known
    what the model reads of the evidence and it is here to be asked."""
    model, method = compute.identify(spec), method_for(compute, spec, setup)
    store = _store(compute, setup.collection)
    key = (
        str(compute.root),
        model.key.fingerprint,
        repr(method),
        store.fingerprint,
        setup.left_out,
        setup.selection,
    )
    if (found := _evaluations.find(key)) is not None:
        return found
    rankings = store.select(model.key, method)
    if not complete(rankings, setup.collection):
        return None
    if store.evidence_missing(model.key) and not model.stored_only:
        return None
    read = store.evidence_read(model.key)
    evaluation = evaluate(
        spec.name,
        rankings,
        setup.collection,
        own_corpus=setup.own_corpus,
        read=read,
        queries=setup.queries,
    )
    return _evaluations.keep(key, Ranked(setup, evaluation, tuple(rankings), read, model, method))


def _store(compute: Compute, collection: Collection) -> RankingStore:
    """One store a collection: its fingerprint takes a pass over what it holds."""
    # The store holds its collection, so the id is given to no other.
    key = (str(compute.root), collection.name, id(collection))
    return _stores.get(key, lambda: RankingStore(compute.root, collection))


# -- tables --------------------------------------------------------------------------------------


def measures_frame(found: Sequence[Measured]) -> pd.DataFrame:
    """A row a model: each measure with the ends of its interval, missing queries, what the corpus
    lacks or leaves out, same-language share and what the corpus would give."""
    rows = []
    for one in found:
        evaluation, collection = one.evaluation, one.setup.collection
        row: dict[str, object] = {
            "model": one.name,
            "queries": evaluation.n,
            "documents": collection.survey.n,
            "without a result": evaluation.n_missing,
            "own ids left out": collection.survey.own_ids if collection.skips_own_id else 0,
            "judged, not in corpus": collection.n_lost,
        }
        for name, estimate in evaluation.estimates.items():
            row |= {
                name: estimate.value,
                f"{name} low": estimate.low,
                f"{name} high": estimate.high,
            }
        bias = evaluation.language
        row["same language in top 10"] = None if bias is None else bias.share.value
        row["same language in corpus"] = None if bias is None else bias.expected
        rows.append(row)
    return pd.DataFrame(rows)


def measures_text(found: Sequence[Measured]) -> pd.DataFrame:
    """The same for the eye: each measure with its interval in one cell."""
    rows = []
    for one in found:
        evaluation, bias = one.evaluation, one.evaluation.language
        row: dict[str, object] = {"model": one.name}
        row |= {name: str(estimate) for name, estimate in evaluation.estimates.items()}
        row["same language"] = "" if bias is None else str(bias.share)
        row["in corpus"] = None if bias is None else bias.expected
        row["without a result"] = evaluation.n_missing
        rows.append(row)
    return pd.DataFrame(rows)


def languages_frame(found: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model and language of queries: how many queries and pairs, S@10 of both with
    the ends of its intervals, and nDCG@10."""
    rows = []
    for one in found:
        queries, evaluation = one.setup.queries, one.evaluation
        for language in one.setup.collection.languages:
            at = [n for n, query in enumerate(queries) if query.language == language]
            if not at:
                continue
            asked = [queries[n] for n in at]
            successes = int(evaluation.per_query[SUCCESS][at].sum())
            row: dict[str, object] = {
                "model": one.name,
                "language": language,
                "queries": len(asked),
                "pairs": sum(len(query.relevant) for query in asked),
            }
            for name, estimate in (
                (SUCCESS_OF_PAIRS, success_of_pairs(one.rankings, asked)),
                (SUCCESS, agresti_coull(successes, len(asked))),
            ):
                row |= {
                    name: estimate.value,
                    f"{name} low": estimate.low,
                    f"{name} high": estimate.high,
                }
            row[NDCG] = float(evaluation.per_query[NDCG][at].mean())
            rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["model", "language", "queries"])


def psi_frame(found: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model and length bucket, the whole first, then the queries whose evidence the
    model reads whole: PSI, what chance gives, share of the evidence that was read, nDCG@10."""
    rows = []
    for one in found:
        for bucket, profile in _profiles(one).items():
            if profile is not None:
                rows.append({"model": one.name, "length": bucket} | _psi_row(profile))
    columns = [
        "model",
        "length",
        "PSI",
        "PSI by chance",
        "p",
        "queries",
        "evidence read",
        "empty bins",
        NDCG,
        f"{NDCG}, mean of bins",
    ]
    return pd.DataFrame(rows, columns=columns)


def _profiles(one: Measured) -> dict[str, EvidenceProfile | None]:
    found = one.evaluation
    return {OVERALL: found.profile, READ_WHOLE: found.read_whole, **found.buckets}


def _psi_row(profile: EvidenceProfile) -> dict[str, object]:
    return {
        "queries": profile.n,
        "evidence read": profile.mean_read,
        "empty bins": profile.n_empty,
        "PSI": profile.psi,
        "PSI by chance": profile.psi_by_chance,
        "p": profile.p,
        NDCG: profile.mean,
        f"{NDCG}, mean of bins": profile.mean_of_bins,
    }


def bins_frame(found: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model, length bucket and evidence bin: its centre, queries, mean share of the
    evidence that the model read, and nDCG@10."""
    rows = []
    for one in found:
        for bucket, profile in _profiles(one).items():
            if profile is None:
                continue
            for number, (mean, n) in enumerate(zip(profile.means, profile.counts, strict=True)):
                rows.append(
                    {
                        "model": one.name,
                        "length": bucket,
                        "bin": number,
                        "position": (number + 0.5) / len(profile.means),
                        "queries": n,
                        "evidence read": profile.read[number],
                        NDCG: mean,
                    }
                )
    columns = ["model", "length", "bin", "position", "queries", "evidence read", NDCG]
    return pd.DataFrame(rows, columns=columns)


def queries_frame(one: Measured) -> pd.DataFrame:
    """A row a query: its measures, the rank of its best relevant document, evidence, length."""
    rows = []
    for number, query in enumerate(one.setup.queries):
        rank = first_rank(one, query)
        rows.append(
            {
                "query": query.text,
                NDCG: float(one.evaluation.per_query[NDCG][number]),
                "rank": rank,
                "evidence": None if query.evidence is None else 100 * query.evidence,
                "length": length_bucket(query.document_tokens) if query.document_tokens else None,
                "language": query.language,
                "id": query.query_id,
            }
        )
    return pd.DataFrame(rows).astype({"rank": "Int64"})


FAILED = "not in the top 10"
LATE = "evidence in the last third"
EARLY = "evidence in the first third"
FILTERS = (FAILED, LATE, EARLY)


def filtered(frame: pd.DataFrame, filters: Sequence[str]) -> pd.DataFrame:
    """The rows of `queries_frame` that pass all of `filters`."""
    for one in filters:
        if one == FAILED:
            frame = frame[frame["rank"].isna() | (frame["rank"] > TOP)]
        elif one == LATE:
            frame = frame[frame["evidence"] > 200 / 3]
        elif one == EARLY:
            frame = frame[frame["evidence"] < 100 / 3]
    return frame


def first_rank(one: Measured, query: Query) -> int | None:
    """Rank, from 1, of the first relevant document; None where none was found."""
    ranking = one.by_query[query.query_id]
    ranks = (r for r, key in enumerate(ranking.document_ids, 1) if key in query.relevant)
    return next(ranks, None)


def query_of(one: Measured, query_id: str) -> Query:
    """The query of this id.

    Raises:
        UserError: there is none.
    """
    for query in one.setup.queries:
        if query.query_id == query_id:
            return query
    raise UserError(f"There is no query {query_id[:80]!r}: choose one from the table.")


def top_frame(one: Measured, query: Query) -> pd.DataFrame:
    """The query's top 10: rank, score, whether it is relevant, language, id, text."""
    ranking = one.by_query[query.query_id]
    keys = ranking.document_ids[:TOP]
    texts = one.setup.collection.texts(keys)
    return pd.DataFrame(
        {
            "rank": range(1, len(keys) + 1),
            "score": ranking.scores[: len(keys)].astype(float),
            "relevant": [key in query.relevant for key in keys],
            "language": ranking.languages[: len(keys)],
            "document": [texts[key] for key in keys],
            "id": keys,
            "pair": [query.pairs.get(key, "") for key in keys],
        }
    )
