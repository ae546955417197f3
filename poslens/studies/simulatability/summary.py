"""Predictions of a model's ranking from a method's words, counted from stored results; tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import word_span_scores
from poslens.attribution.curves.proportions import mean_share
from poslens.attribution.datasets import Collection
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import SHARE_MARGIN, Comparison, paired
from poslens.attribution.evaluation.search import Ranking
from poslens.attribution.evaluation.simulatability import (
    VIEWS,
    ForcedChoice,
    ReadWords,
    Simulator,
    predictions,
)
from poslens.attribution.methods import METHOD_TITLES, METHODS
from poslens.attribution.text import word_spans
from poslens.attribution.types import Attribution, Method, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.rows import PERCENT, PERCENTAGE_POINTS, ModelRow, Table, column
from poslens.studies.ranking import service as ranking
from poslens.studies.ranking.service import RankingSetup
from poslens.study import AskedMethod, ModelSummary

VERSION = 1


@dataclass(frozen=True)
class Simulated(AskedMethod[Collection]):
    """A model and a method over a corpus with queries."""

    @property
    def title(self) -> str:
        """The model and the method as pages name them."""
        return f"{self.spec.name}, {METHODS[self.method.name].title}"

    @property
    def n_queries(self) -> int:
        """The number of queries."""
        return min(int(self.settings.queries), len(self.corpus.queries))

    @property
    def measure(self) -> Method:
        """The measure with its parameters, for keys and captions."""
        parameters = {"method": repr(self.method), "words": self.settings.words, "version": VERSION}
        return Method("simulatability", parameters)


@dataclass(frozen=True)
class Candidates:
    """A query's two highest-ranked documents as pairs, and the document that intervals resample."""

    higher: TextPair
    lower: TextPair
    document: str


@dataclass(frozen=True)
class SimulatabilitySummary(ModelSummary[Simulated]):
    """Shares of correct predictions of one model and method: by view, `rows` [n] for each query and
    their means `views`. Intervals resample `documents` [n]. `gain` is the share with the method's
    words minus that with random words, and `over_similar` minus that with the words most similar to
    the query. `left_out` queries have no two documents with different scores."""

    choices: tuple[ForcedChoice, ...]
    documents: tuple[str, ...]
    rows: dict[str, np.ndarray]
    views: dict[str, Estimate | None]
    gain: Comparison | None
    over_similar: Comparison | None
    left_out: int


# Pages need these at every rerun for each method, and reading the texts takes a pass over the
# corpus.
_ranked: LRUCache[tuple[Candidates, ...]] = LRUCache(8)


def candidates_of(compute: Compute, subject: Simulated) -> tuple[Candidates, ...] | None:
    """The two highest-ranked documents of each query; None while the ranking is missing. Queries
    that retrieve fewer than two documents, or two with equal scores, are left out."""
    spec, collection = subject.spec, subject.corpus
    fingerprint = compute.identify(spec).key.fingerprint
    key = (str(compute.root), fingerprint, collection.digest, subject.settings.queries)
    if (candidates := _ranked.find(key)) is not None:
        return candidates
    rankings = ranking.stored_rankings(compute, spec, RankingSetup(collection))
    if rankings is None:
        return None
    return _ranked.keep(key, _first_two(subject, rankings))


def _first_two(subject: Simulated, rankings: Mapping[str, Ranking]) -> tuple[Candidates, ...]:
    collection, queries = subject.corpus, subject.corpus.queries
    asked = [
        query
        for query in spread_evenly(queries, subject.settings.queries)
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


def pairs_of(candidates: Sequence[Candidates]) -> list[TextPair]:
    """Both documents of each query, as pairs."""
    return [pair for both in candidates for pair in (both.higher, both.lower)]


def summary_of(
    compute: Compute, subject: Simulated, model: ModelIdentity, candidates: Sequence[Candidates]
) -> SimulatabilitySummary:
    """The shares of correct predictions for candidates whose attributions are stored.

    Raises:
        UserError: there are no candidates, or the method failed on a document of each.
    """
    stored = iter(compute.store.get_many(model.key, subject.method, pairs_of(candidates)))
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
            f"For no query does {subject.spec.name} retrieve two documents with different scores: "
            "select another data set."
        )
    if not choices:
        raise UserError(
            f"For no query does {subject.method.name} with {subject.spec.name} have results for "
            "both documents: select another method."
        )
    simulator = Simulator(sorted(texts))
    credits = [predictions(simulator, choice, subject.settings.words) for choice in choices]
    rows = {view: np.array([credit[view] for credit in credits]) for view in VIEWS}
    return SimulatabilitySummary(
        model,
        subject,
        tuple(choices),
        tuple(documents),
        rows,
        {view: mean_share(values, documents) for view, values in rows.items()},
        paired(rows["random"], rows["explanation"], documents, SHARE_MARGIN, largest=1.0),
        paired(rows["similar"], rows["explanation"], documents, SHARE_MARGIN, largest=1.0),
        subject.n_queries - len(candidates),
    )


def _read_words(pair: TextPair, attribution: Attribution) -> ReadWords:
    """The words of the pair's document that the model read, with their contributions."""
    spans = word_spans(pair.document)
    aggregate = METHODS[attribution.method.name].aggregate
    scores = word_span_scores(
        attribution.document, attribution.document_scores, pair.document, aggregate
    )
    read = np.flatnonzero(np.isfinite(scores)).tolist()
    words = tuple(pair.document[slice(*spans[index])] for index in read)
    return ReadWords(words, scores[read])


# -- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodRow(ModelRow):
    """Predictions for one model and method."""

    method: str = column("Attribution method that chooses the words.", words=METHOD_TITLES)
    queries: int = column("Number of queries whose two highest-ranked documents are compared.")
    words: int = column("Number of words that are read of each document.")
    explanation: Estimate | None = column(
        f"Share of correct predictions, 0 to 1, from {VIEWS['explanation']}.",
        title="method's words",
        form=PERCENT,
    )
    random: Estimate | None = column(
        f"Share of correct predictions from {VIEWS['random']}.", form=PERCENT
    )
    first: Estimate | None = column(
        f"Share of correct predictions from {VIEWS['first']}.", form=PERCENT
    )
    similar: Estimate | None = column(
        f"Share of correct predictions from {VIEWS['similar']}.", form=PERCENT
    )
    all: Estimate | None = column(
        f"Share of correct predictions from {VIEWS['all']}.",
        title="all words",
        form=PERCENT,
    )
    gain: Comparison | None = column(
        "The method's words minus random words, paired by query.", form=PERCENTAGE_POINTS
    )
    over_similar: Comparison | None = column(
        "The method's words minus the words most similar to the query, paired by query.",
        title="minus similar words",
        form=PERCENTAGE_POINTS,
    )


@dataclass(frozen=True)
class QueryRow(ModelRow):
    """Predictions for one query."""

    method: str = column("Attribution method that chooses the words.", words=METHOD_TITLES)
    query: str = column("The query.")
    higher: str = column("The method's words of the document that the model ranks first.")
    lower: str = column("The method's words of the document that the model ranks second.")
    correct: float = column("1 if the prediction from these words is correct; 0.5 for a tie.")
    random: float = column("Share of correct predictions from random words.", form=PERCENT)
    pair: str = column("Id of the pair of the query with the document that the model ranks first.")


def _method_rows(summary: SimulatabilitySummary) -> Iterator[MethodRow]:
    asked = summary.asked
    yield MethodRow(
        asked.spec.name,
        asked.method.name,
        len(summary.choices),
        asked.settings.words,
        **summary.views,
        gain=summary.gain,
        over_similar=summary.over_similar,
    )


def _query_rows(summary: SimulatabilitySummary) -> Iterator[QueryRow]:
    asked = summary.asked
    for number, choice in enumerate(summary.choices):
        higher, lower = (
            side.text(side.largest(asked.settings.words)) for side in (choice.higher, choice.lower)
        )
        yield QueryRow(
            asked.spec.name,
            asked.method.name,
            choice.query,
            higher,
            lower,
            float(summary.rows["explanation"][number]),
            float(summary.rows["random"][number]),
            choice.choice_id,
        )


TABLES = {
    "methods": Table(MethodRow, _method_rows),
    "queries": Table(QueryRow, _query_rows, "Queries", on_page=False),
}
