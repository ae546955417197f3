"""The declaration of the study `simulatability`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.curves.positions import unit_scores
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import (
    SHARE_MARGIN,
    Comparison,
    adjusted,
    change_in_words,
    paired,
)
from poslens.attribution.evaluation.search import Ranking
from poslens.attribution.evaluation.simulatability import (
    N_RANDOM,
    VIEWS,
    ForcedChoice,
    ReadWords,
    Simulator,
    predictions,
)
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.lexical import word_spans
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, Method, Provenance, TextPair
from poslens.cache.jobs.loop import Progress
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity, of_model
from poslens.compute.runs import Job, Report, Run
from poslens.figures.figure_base import Provenances
from poslens.figures.palettes import Style
from poslens.parameters import Integer, Parameters, Settings, Several
from poslens.rows import Table, column
from poslens.studies.faithfulness.figures import gains
from poslens.studies.ranking import service as ranking
from poslens.studies.ranking.service import RankingSetup, read_searched, searched
from poslens.studies.why.search import require_ranking
from poslens.study import Figure, Study, register

VERSION = 1


@dataclass(frozen=True)
class Simulated:
    """The subject: a model, a method, a corpus, the maximum number of queries, and the number of
    words of each document."""

    spec: RetrieverSpec
    method: Method
    collection: Collection
    queries: int
    words: int

    @property
    def measure(self) -> Method:
        """The measure with its parameters, for keys and captions."""
        parameters = {"method": repr(self.method), "words": self.words, "version": VERSION}
        return Method("simulatability", parameters)


@dataclass(frozen=True)
class Candidates:
    """A query's two highest-ranked documents as pairs, and the document that intervals resample."""

    higher: TextPair
    lower: TextPair
    document: str


@dataclass(frozen=True)
class SimulatabilitySummary:
    """Shares of correct predictions of one model and method: by view, `rows` [n] for each query and
    their means `views`. Intervals resample `documents` [n]. `gain` is the share with the method's
    words minus that with random words, and `over_similar` minus that with the words most similar to
    the query."""

    asked: Simulated
    model: ModelIdentity
    choices: tuple[ForcedChoice, ...]
    documents: tuple[str, ...]
    rows: dict[str, np.ndarray]
    views: dict[str, Estimate | None]
    gain: Comparison | None
    over_similar: Comparison | None


@dataclass(frozen=True)
class MethodRow:
    """Predictions for one model and method."""

    model: str = column("Name of the model.")
    method: str = column("Attribution method that chooses the words.")
    queries: int = column("Queries whose two highest-ranked documents are compared.")
    words: int = column("Words that are read of each document.")
    explanation: Estimate | None = column(
        f"Share of correct predictions, 0 to 1, from {VIEWS['explanation']}.", title="method"
    )
    random: Estimate | None = column(f"The same from {VIEWS['random']}.")
    first: Estimate | None = column(f"The same from {VIEWS['first']}.")
    similar: Estimate | None = column(f"The same from {VIEWS['similar']}.")
    all: Estimate | None = column(f"The same from {VIEWS['all']}.", title="all words")
    gain: Comparison | None = column(
        "The method's words minus random words, paired by query.", form="+.3f"
    )
    over_similar: Comparison | None = column(
        "The method's words minus the words most similar to the query, paired by query.",
        title="minus similar words",
        form="+.3f",
    )


@dataclass(frozen=True)
class QueryRow:
    """Predictions for one query."""

    model: str = column("Name of the model.")
    method: str = column("Attribution method that chooses the words.")
    query: str = column("The query.")
    higher: str = column("The method's words of the document that the model ranks first.")
    lower: str = column("The method's words of the document that the model ranks second.")
    correct: float = column("1 if the prediction from these words is correct; 0.5 for a tie.")
    random: float = column("Share of correct predictions from random words.")


def _method_rows(summary: SimulatabilitySummary) -> Iterator[MethodRow]:
    asked = summary.asked
    yield MethodRow(
        asked.spec.name,
        asked.method.name,
        len(summary.choices),
        asked.words,
        **summary.views,
        gain=summary.gain,
        over_similar=summary.over_similar,
    )


def _query_rows(summary: SimulatabilitySummary) -> Iterator[QueryRow]:
    asked = summary.asked
    for number, choice in enumerate(summary.choices):
        higher, lower = (
            side.text(side.largest(asked.words)) for side in (choice.higher, choice.lower)
        )
        yield QueryRow(
            asked.spec.name,
            asked.method.name,
            choice.query,
            higher,
            lower,
            float(summary.rows["explanation"][number]),
            float(summary.rows["random"][number]),
        )


def _gains(
    summaries: Sequence[SimulatabilitySummary], style: Style, provenance: Provenances
) -> go.Figure:
    rows = [
        (f"{summary.asked.spec.name}, {summary.asked.method.name}", summary.gain.difference)
        for summary in summaries
        if summary.gain is not None
    ]
    return gains(rows, "Correct predictions, method's words − random words", style, provenance)


class Simulatability(Study[Collection, Simulated, SimulatabilitySummary]):
    """Measures how well a program predicts a model's ranking from a few words of each document."""

    name = "simulatability"
    title = "Simulatability"
    question = "Do a method's words help to predict which document a model ranks higher?"
    unit = "query"
    reads = (
        "A program sees the query and a few words of the two documents that the model ranks first "
        "and second, and predicts which one is first. Points right of zero: words chosen by the "
        "method lead to more correct predictions than random words."
    )
    limits = (
        "The program predicts the document whose words are more similar to the query (TF-IDF of "
        f"character n-grams). Random: mean of {N_RANDOM} draws. A method can gain by choosing "
        "words that resemble the query, whether or not the model uses them; compare with the "
        "column of similar words. A program stands in for people, who may predict better or "
        "worse. A tie counts as half a correct prediction. Intervals resample the documents that "
        "the queries belong to."
    )
    parameters = Parameters(
        methods=Several(
            title="Methods",
            option="--method",
            default=(),
            options=tuple(METHODS),
            closed=True,
            help="Repeatable; by default all that fit the model and are not slow.",
        ),
        words=Integer(
            title="Words", default=8, low=1, high=200, help="Words that are read of each document."
        ),
        queries=Integer(
            title="Queries",
            default=60,
            low=2,
            high=100_000,
            step=20,
            help="Maximum number of queries, spread evenly over the data set.",
        ),
    )
    tables: ClassVar = {
        "methods": Table(MethodRow, _method_rows),
        "queries": Table(QueryRow, _query_rows, "Queries", on_page=False),
    }
    figures = (Figure("Gain in correct predictions by method", _gains),)

    def read(self, dataset: str) -> DataSet:
        return read_searched(dataset)

    def corpus(self, data: DataSet, settings: Settings) -> Collection:
        """The corpus with its queries.

        Raises:
            UserError: it has no queries, or fewer than two documents.
        """
        collection = searched(data)
        if collection.survey.n < 2 or not collection.queries:
            raise UserError(
                f"{collection.title} needs queries and at least two documents: select another data "
                "set."
            )
        return collection

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: Collection, settings: Settings
    ) -> list[Simulated]:
        """One subject for each method that fits the model.

        Raises:
            UserError: no method fits, or the model has no ranking of the whole corpus.
        """
        require_ranking(spec)
        unfit = compute.unfit(compute.identify(spec))
        fast = [name for name, entry in METHODS.items() if not entry.slow]
        names = [name for name in settings.methods or fast if name not in unfit]
        if not names:
            raise UserError(
                f"{spec.name} fits none of these methods: "
                + "; ".join(unfit[name] for name in settings.methods or fast)
            )
        return [
            Simulated(spec, make_method(name), corpus, settings.queries, settings.words)
            for name in names
        ]

    def job(self, compute: Compute, subject: Simulated) -> Job:
        """A job that ranks the corpus and attributes the scores of the two documents of each query;
        progress counts queries."""
        model, spec, collection = compute.identify(subject.spec), subject.spec, subject.collection
        setup = RankingSetup(collection)
        total = min(subject.queries, len(collection.queries))

        def work(run: Run, report: Report) -> Progress:
            if ranking.stored_rankings(compute, spec, setup) is None:
                progress = ranking.job(compute, spec, setup).work(run, report)
                if progress.stopped:
                    return progress
            run.stage = f"Computing {subject.method.name}"
            pairs = _pairs(_candidates(compute, subject) or ())
            scope = f"simulatability of {collection.name}"
            return compute.attribution_job(spec, subject.method, pairs, scope).work(run, report)

        def n_done() -> int:
            candidates = _candidates(compute, subject)
            if candidates is None:
                return 0
            missing = compute.store.missing(model.key, subject.method, _pairs(candidates))
            return max(0, total - (len(missing) + 1) // 2)

        return compute.model_job(
            model,
            subject.measure,
            f"{collection.name} {subject.queries}",
            total,
            work,
            partial(self.job, subject=subject),
            label=f"{spec.name}, {subject.method.name}",
            n_done=n_done,
            doing="simulatability",
        )

    def summarize(
        self, compute: Compute, subject: Simulated, earlier: Sequence[SimulatabilitySummary] = ()
    ) -> SimulatabilitySummary | None:
        """The shares of correct predictions; None while an attribution is missing."""
        model, candidates = compute.identify(subject.spec), _candidates(compute, subject)
        if candidates is None or compute.store.missing(
            model.key, subject.method, _pairs(candidates)
        ):
            return None
        key = (
            str(compute.root),
            subject.spec.name,
            model.key.fingerprint,
            repr(subject.measure),
            subject.collection.digest,
            subject.queries,
        )
        return _summaries.get(key, lambda: _summary(compute, subject, model, candidates))

    def together(self, summaries: Sequence[SimulatabilitySummary]) -> list[SimulatabilitySummary]:
        measures = [c for summary in summaries for c in (summary.gain, summary.over_similar)]
        after = iter(adjusted(measures))
        return [
            replace(summary, gain=next(after), over_similar=next(after)) for summary in summaries
        ]

    def verdict(self, summary: SimulatabilitySummary) -> str:
        asked, views = summary.asked, summary.views
        name = f"{asked.spec.name}, {asked.method.name}"
        if summary.gain is None:
            return f"{name}: nothing could be predicted."
        shares = {view: value.value for view, value in views.items() if value is not None}
        return (
            f"{name}: the share of correct predictions {change_in_words(summary.gain.difference)} "
            f"with the method's {asked.words} words instead of random ones, from "
            f"{shares['random']:.3f} to {shares['explanation']:.3f}. {summary.gain.sentence} The "
            f"words most similar to the query give {shares['similar']:.3f}."
        )

    def provenance(self, summary: SimulatabilitySummary) -> Provenance:
        asked = summary.asked
        return of_model(
            summary.model,
            repr(asked.measure),
            asked.collection.name,
            n_queries=len(summary.choices),
            n_documents=asked.collection.survey.n,
            selection=f"up to {asked.queries:,} queries; documents of ranks 1 and 2",
            control="random words",
            interval=summary.views["explanation"],
        )


_summaries: LRUCache[SimulatabilitySummary] = LRUCache(64)
# Pages need these at every rerun for each method, and reading the texts takes a pass over the
# corpus.
_ranked: LRUCache[tuple[Candidates, ...]] = LRUCache(8)


def _candidates(compute: Compute, subject: Simulated) -> tuple[Candidates, ...] | None:
    """The two highest-ranked documents of each query; None while the ranking is missing. Queries
    that retrieve fewer than two documents, or two with equal scores, are left out."""
    spec, collection = subject.spec, subject.collection
    fingerprint = compute.identify(spec).key.fingerprint
    key = (str(compute.root), fingerprint, collection.digest, subject.queries)
    if (candidates := _ranked.find(key)) is not None:
        return candidates
    rankings = ranking.stored_rankings(compute, spec, RankingSetup(collection))
    if rankings is None:
        return None
    return _ranked.keep(key, _first_two(subject, rankings))


def _first_two(subject: Simulated, rankings: Mapping[str, Ranking]) -> tuple[Candidates, ...]:
    collection, queries = subject.collection, subject.collection.queries
    asked = [
        query
        for query in spread_evenly(queries, min(subject.queries, len(queries)))
        if len(scores := rankings[query.query_id].scores[:2]) == 2 and scores[0] > scores[1]
    ]
    keys = {key for query in asked for key in rankings[query.query_id].document_ids[:2]}
    texts = collection.texts(keys)
    candidates = []
    for query in asked:
        higher, lower = (
            TextPair(
                query.pairs.get(key, f"{query.query_id} {key}"),
                query.text,
                texts[key],
                language=language,
                dataset=collection.name,
            )
            for key, language in zip(
                rankings[query.query_id].document_ids[:2],
                rankings[query.query_id].languages[:2],
                strict=True,
            )
        )
        candidates.append(Candidates(higher, lower, query.document))
    return tuple(candidates)


def _pairs(candidates: Sequence[Candidates]) -> list[TextPair]:
    return [pair for both in candidates for pair in (both.higher, both.lower)]


def _summary(
    compute: Compute, subject: Simulated, model: ModelIdentity, candidates: Sequence[Candidates]
) -> SimulatabilitySummary:
    stored = iter(compute.store.get_many(model.key, subject.method, _pairs(candidates)))
    choices: list[ForcedChoice] = []
    documents: list[str] = []
    texts: set[str] = set()
    for both in candidates:
        higher, lower = next(stored), next(stored)
        if higher is None or lower is None:  # the method failed on a document
            continue
        sides = _read_words(both.higher, higher), _read_words(both.lower, lower)
        choices.append(ForcedChoice(both.higher.pair_id, both.higher.query, *sides))
        documents.append(both.document)
        texts.update((both.higher.document, both.lower.document))
    if not candidates:
        raise UserError(
            f"{subject.spec.name} retrieves no two documents with different scores for any query: "
            "select another data set."
        )
    if not choices:
        raise UserError(
            f"{subject.method.name} of {subject.spec.name} has no result for both documents of any "
            "query: select another method."
        )
    simulator = Simulator(sorted(texts))
    credits = [predictions(simulator, choice, subject.words) for choice in choices]
    rows = {view: np.array([credit[view] for credit in credits]) for view in VIEWS}
    return SimulatabilitySummary(
        subject,
        model,
        tuple(choices),
        tuple(documents),
        rows,
        {view: estimate(values[:, None], documents) for view, values in rows.items()},
        paired(rows["random"], rows["explanation"], documents, SHARE_MARGIN),
        paired(rows["similar"], rows["explanation"], documents, SHARE_MARGIN),
    )


def _read_words(pair: TextPair, attribution: Attribution) -> ReadWords:
    """The words of the pair's document that the model read, with their contributions."""
    spans = word_spans(pair.document)
    aggregate = METHODS[attribution.method.name].aggregate
    scores = unit_scores(attribution.document, attribution.document_scores, spans, aggregate)
    read = np.flatnonzero(np.isfinite(scores)).tolist()
    words = tuple(pair.document[slice(*spans[index])] for index in read)
    return ReadWords(words, scores[read])


SIMULATABILITY = Simulatability()
register(SIMULATABILITY)
