"""Runs of other programs, measured like models' rankings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poslens.attribution.datasets.streams import File
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation import trec_runs
from poslens.attribution.evaluation.ranking_measures import evaluate
from poslens.attribution.evaluation.trec_runs import TrecRun, placed, read_run
from poslens.attribution.nouns import counted
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
        name, n = self.collection.name, self.collection.survey.n
        return provenance.of_run(self.run, self.evaluation, name, n, self.selection)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which parts of the run are ignored, one sentence each."""
        run, sentences = self.run, []
        if run.n_rejected:
            first = run.rejected[0]
            sentences.append(
                f"Ignored: {counted(run.n_rejected, 'invalid line')} of {run.file}, the first in "
                f"line {first.row}: {first.reason}."
            )
        if run.n_repeated:
            sentences.append(
                f"Ignored: {counted(run.n_repeated, 'result')} of {run.file} whose document is "
                "listed for the same query with a higher score."
            )
        if self.n_strange:
            sentences.append(
                f"Ignored: {counted(self.n_strange, 'query')} of {run.name} without judgments here."
            )
        if self.n_lost:
            sentences.append(
                f"Ignored: {counted(self.n_lost, 'result')} of {run.name} with documents outside "
                "the corpus."
            )
        return tuple(sentences)


_measured: LRUCache[RankedRun] = LRUCache(16)


def ranked_run(run: TrecRun, setup: RankingSetup) -> RankedRun:
    """A run over a collection, measured like a model's rankings.

    Raises:
        UserError: the run has none of the queries, or each query searches only documents of its
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


def runs_of(values: Sequence[str]) -> list[TrecRun]:
    """The runs of these values: names of registered runs, or NAME=FILE.

    Raises:
        UserError: a name is given twice, or a file is not a run in TREC's format.
    """
    from poslens.names import named

    runs: dict[str, TrecRun] = {}
    for value in values:
        run = trec_runs.known().get(value)
        if run is None:
            name, path = named(value, "--run", "FILE")
            run = read_run(name, File(path.name, path))
        if run.name in runs:
            raise UserError(f"Two rankings are named {run.name}: give the run another name.")
        runs[run.name] = run
    return list(runs.values())
