"""The declaration of the study `simulatability`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import plotly.graph_objects as go

from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison_words import POINTS, share_change
from poslens.attribution.evaluation.simulatability import N_RANDOM
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.jobs.loop import Progress
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job, Report, Run
from poslens.figures.palettes import Style
from poslens.parameters import Integer, Parameters, Settings
from poslens.studies.faithfulness.figures import gains
from poslens.studies.ranking import service as ranking
from poslens.studies.ranking.service import RankingSetup, searched
from poslens.studies.selections import METHOD_CHOICE, methods_for
from poslens.studies.simulatability.summary import (
    TABLES,
    SimulatabilitySummary,
    Simulated,
    candidates_of,
    pairs_of,
    summary_of,
)
from poslens.studies.why.search import require_ranking
from poslens.study import Figure, Study, register


def _gains(summaries: Sequence[SimulatabilitySummary], style: Style) -> go.Figure:
    rows = [
        (summary.asked.title, gain.difference.times(100))
        for summary in summaries
        if (gain := summary.gain) is not None
    ]
    title = "Correct predictions, method's words − random words (percentage points)"
    return gains(rows, title, style)


class Simulatability(Study[Collection, Simulated, SimulatabilitySummary]):
    """Measures how well a program predicts a model's ranking from a few words of each document."""

    name = "simulatability"
    question = "Do a method's words help to predict which document a model ranks higher?"
    unit = "query"
    needs = "queries"
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
        methods=METHOD_CHOICE,
        words=Integer(default=8, low=1, high=200, help="Number of words shown per document."),
        queries=Integer(
            default=60,
            low=2,
            high=100_000,
            step=20,
            help="Maximum number of queries, spread evenly over the data set.",
        ),
    )
    tests = ("gain", "over_similar")
    tables: ClassVar = TABLES
    figures = (Figure("Gain in correct predictions by method", _gains),)

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
        """One subject for each method.

        Raises:
            UserError: no method fits, or the model has no ranking of the whole corpus.
        """
        require_ranking(spec)
        return [
            Simulated(spec, corpus, settings, method)
            for method in methods_for(compute, spec, settings.methods)
        ]

    def job(self, compute: Compute, subject: Simulated) -> Job:
        """A job that ranks the corpus and attributes the scores of the two documents of each query;
        progress counts queries while it ranks, and then documents."""
        model, spec, collection = compute.identify(subject.spec), subject.spec, subject.corpus
        compute.require_fit(model, subject.method)
        setup = RankingSetup(collection)
        total = subject.n_queries

        def attribution() -> Job:
            pairs = pairs_of(candidates_of(compute, subject) or ())
            scope = f"simulatability of {collection.name}"
            return compute.attribution_job(spec, subject.method, pairs, scope)

        def work(run: Run, report: Report) -> Progress:
            if ranking.stored_rankings(compute, spec, setup) is None:
                progress = ranking.job(compute, spec, setup).work(run, report)
                if progress.stopped:
                    return progress
            run.stage = f"Computing {subject.method.name}"
            return attribution().work(run, report)

        def n_done() -> int:
            if candidates_of(compute, subject) is None:
                return 0
            job = attribution()
            return max(0, total - (job.total - job.n_done() + 1) // 2)

        return compute.model_job(
            model,
            subject.measure,
            f"{collection.name} {subject.settings.queries}",
            total,
            work,
            partial(self.job, subject=subject),
            label=f"{spec.name}, {subject.method.name}",
            n_done=n_done,
            failures=lambda: attribution().failures(),
            counts_items=False,
            doing="simulatability",
        )

    def summarize(self, compute: Compute, subject: Simulated) -> SimulatabilitySummary | None:
        """The shares of correct predictions; None while an attribution is missing."""
        model, candidates = compute.identify(subject.spec), candidates_of(compute, subject)
        if candidates is None or compute.store.missing(
            model.key, subject.method, pairs_of(candidates)
        ):
            return None
        key = (
            str(compute.root),
            subject.spec.name,
            model.key.fingerprint,
            repr(subject.measure),
            subject.corpus.digest,
            subject.settings.queries,
        )
        return self.summaries.get(key, lambda: summary_of(compute, subject, model, candidates))

    def verdict(self, summary: SimulatabilitySummary) -> str:
        asked, name = summary.asked, summary.asked.title
        if summary.gain is None:
            return f"{name}: nothing could be predicted."
        shares = {view: value.value for view, value in summary.views.items() if value is not None}
        return (
            f"{name}: the share of correct predictions {share_change(summary.gain)} with the "
            f"method's {asked.settings.words} words instead of random ones, from "
            f"{shares['random']:.1%} to {shares['explanation']:.1%}. "
            f"{summary.gain.in_words(100, POINTS)} The words most similar to the query give "
            f"{shares['similar']:.1%}."
        )

    def remarks(self, summaries: Sequence[SimulatabilitySummary]) -> list[str]:
        """How many queries have nothing to predict."""
        remarks = (
            f"{summary.name}: {summary.left_out:,} of {counted(summary.asked.n_queries, 'query')} "
            "have no prediction, because they don't retrieve two documents with different scores."
            for summary in summaries
            if summary.left_out
        )
        return list(dict.fromkeys(remarks))

    def provenance(self, summary: SimulatabilitySummary) -> Provenance:
        asked = summary.asked
        return of_model(
            summary.model,
            repr(asked.measure),
            asked.corpus.name,
            n_queries=len(summary.choices),
            n_documents=asked.corpus.survey.n,
            selection=f"up to {asked.settings.queries:,} queries; documents of ranks 1 and 2",
            control="random words",
        )


SIMULATABILITY = register(Simulatability())
