"""Runs of other programs, compared with models' rankings, and the query-by-query difference of
two rankings. No Streamlit here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison, compared
from poslens.attribution.evaluation.position_effect import MARGIN
from poslens.attribution.evaluation.ranking_measures import NDCG, evaluate
from poslens.attribution.evaluation.trec_runs import TrecRun, placed
from poslens.attribution.types import Provenance
from poslens.cache.lru_cache import LRUCache
from poslens.compute import provenance
from poslens.studies.ranking.service import Measured, RankingSetup


@dataclass(frozen=True)
class RankedRun(Measured):
    """A run's measured rankings. `n_strange` counts its queries that are not in the collection,
    `n_lost` its results whose documents are not in the corpus."""

    run: TrecRun
    n_strange: int
    n_lost: int

    def provenance(self) -> Provenance:
        """Everything needed to reproduce the measures."""
        collection = self.setup.collection
        return provenance.of_run(
            self.run, self.evaluation, collection.name, collection.survey.n, self.selection
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Which parts of the run are ignored, one sentence each."""
        run, sentences = self.run, []
        if run.n_rejected:
            first = run.rejected[0]
            sentences.append(
                f"{run.n_rejected:,} lines of {run.file} are invalid, the first in line "
                f"{first.row}: {first.reason}."
            )
        if self.n_strange:
            sentences.append(
                f"{self.n_strange:,} queries of {run.name} don't belong to the data set."
            )
        if self.n_lost:
            sentences.append(
                f"{self.n_lost:,} results of {run.name} name documents that the corpus lacks; "
                "they are ignored."
            )
        return tuple(sentences)


_measured: LRUCache[RankedRun] = LRUCache(16)


def ranked_run(run: TrecRun, setup: RankingSetup) -> RankedRun:
    """A run over a collection, measured like a model's rankings.

    Raises:
        UserError: it has none of the queries, or each query searches only documents of its
            language.
    """
    collection = setup.collection
    if collection.monolingual:
        raise UserError(
            f"{run.name} ranks documents of all languages. Select all documents to compare it."
        )
    key = (
        run.name,
        run.digest,
        collection.digest,
        setup.own_corpus,
        setup.left_out,
        setup.selection,
    )

    def measured() -> RankedRun:
        placed_run = placed(run, collection)
        evaluation = evaluate(
            run.name,
            placed_run.rankings,
            collection,
            own_corpus=setup.own_corpus,
            queries=setup.queries,
        )
        return RankedRun(
            setup, evaluation, placed_run.rankings, {}, run, placed_run.n_strange, placed_run.n_lost
        )

    return _measured.get(key, measured)


def mean_difference(measured: Measured, other: Measured) -> Comparison:
    """The mean difference in nDCG@10 over queries, and its verdict; intervals resample
    documents."""
    values = [
        np.asarray(each.evaluation.per_query[NDCG], dtype=np.float64) for each in (measured, other)
    ]
    documents = [query.document for query in measured.setup.queries]
    comparison = compared((values[0] - values[1])[:, None], documents, MARGIN)
    assert comparison is not None  # nDCG is finite
    return comparison


def difference_words(measured: Measured, other: Measured) -> str:
    """The mean difference as text, with its interval, the numbers of queries and documents, and
    the verdict."""
    comparison = mean_difference(measured, other)
    difference = comparison.difference
    over = f"{difference.n:,} queries with {difference.n_resampled:,} relevant documents"
    how = f"95% interval over documents; {over}" if difference.interval else over
    return (
        f"{measured.name} minus {other.name}, nDCG@10: {difference.text('+.3f')} ({how}). "
        f"{comparison.sentence}"
    )
