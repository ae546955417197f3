"""The declaration of the study `hubs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.hubs import (
    CONTROL,
    MOST_TOP,
    ORDERS,
    SKEW_MARGIN,
    ShuffledInDegrees,
    control,
    sentence_queries,
)
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.jobs.loop import Progress
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job, Report, Run
from poslens.parameters import Integer, Parameters, Settings
from poslens.studies.hubs.summary import (
    MEAN_OF_ORDERS,
    TABLES,
    HubSummary,
    degrees,
    document_ids,
    hubs_method,
    sorted_in_degrees,
)
from poslens.studies.hubs.words import explained_hubs, hub_words, words_method
from poslens.studies.ranking import service as ranking
from poslens.studies.ranking.service import RankingSetup, searched
from poslens.studies.why.search import require_ranking
from poslens.study import Asked, Figure, Study, register

TOP, SENTENCES, EXPLAINED = 10, 1000, 3
IN_DEGREE = (
    "Each query's relevant documents are first removed from its ranking. A document's in-degree is "
    "then the number of queries that have it in their top k."
)


class Hubs(Study[Collection, Asked[Collection], HubSummary]):
    """Counts how many queries that a document does not answer have it in their top k."""

    name = "hubs"
    question = "Which documents are retrieved by many queries that they don't answer, and why?"
    unit = "document"
    needs = "queries"
    reads = (
        f"{IN_DEGREE} If in-degrees are skewed, a few documents (hubs) are in the top k of many "
        "queries that they don't answer. Dotted lines: the same corpus with the words of each "
        "document in random order."
    )
    limits = (
        "Documents judged relevant to a query are removed from its ranking before its top k is "
        "counted; relevant documents without a judgment still count. The control keeps each "
        "document's words, punctuation and length, and destroys word order, sentences and the "
        "position of content, so skewness that remains comes from words and length alone. If a "
        "document is truncated, the model reads other words of it in the control. Intervals of the "
        "skewness are a jackknife over the documents that the queries belong to. Equivalent: the "
        f"90% interval of the difference is within {SKEW_MARGIN:g} of 0. Numbers of the control "
        f"are means of {ORDERS} random orders; intervals include how much the orders differ."
    )
    parameters = Parameters(
        top=Integer(
            title="Top k",
            default=TOP,
            low=1,
            high=MOST_TOP,
            help=IN_DEGREE,
        ),
        sentences=Integer(
            title="Sentences as queries",
            default=SENTENCES,
            low=10,
            high=100_000,
            help="Number of sentences drawn at random as queries if the data set consists of "
            "documents alone. A sentence's own document counts as relevant to it.",
        ),
        explained=Integer(
            title="Hubs to explain",
            default=EXPLAINED,
            low=0,
            high=20,
            help="Number of hubs to compute word attributions for.",
        ),
    )
    compared = ("MiniLM", "BM25")
    tests = ("comparison",)
    tables = TABLES
    figures = (
        Figure(
            "Sorted in-degrees", sorted_in_degrees, ("hubness", "hubs", "queries"), intervals=""
        ),
    )

    def corpus(self, data: DataSet, settings: Settings) -> Collection:
        """The corpus with its queries, or with sentences of its documents as queries.

        Raises:
            UserError: the corpus cannot be read, is empty or too small for the top k.
        """
        collection = searched(data)
        n = collection.survey.n
        if not n:
            raise UserError(f"{collection.title} has no documents: add some to its corpus.")
        if not collection.queries:
            whole, sentences = collection, settings.sentences
            collection = _corpora.get(
                (whole.digest, sentences), lambda: sentence_queries(whole, sentences)
            )
        others = n - min(len(query.relevant) for query in collection.queries)
        if others <= settings.top:
            raise UserError(
                f"{collection.title} has only {counted(n, 'document')}, so every document would be "
                f"in the top {settings.top:,}: choose a smaller top k or add documents."
            )
        return collection

    def notes(self, data: DataSet, corpus: Collection) -> list[str]:
        return [f"Queries: {corpus.drawn}."] if corpus.drawn else []

    def require_fit(self, spec: RetrieverSpec) -> None:
        require_ranking(spec)

    def job(self, compute: Compute, subject: Asked[Collection]) -> Job:
        """A job that ranks the corpus and its control, and attributes the scores of the first hubs;
        progress counts the units of the current stage."""
        model, corpus, spec = compute.identify(subject.spec), subject.corpus, subject.spec
        total = corpus.survey.n

        def work(run: Run, report: Report) -> Progress:
            for collection in (corpus, *controls_of(corpus)):
                setup = RankingSetup(collection)
                if ranking.stored_rankings(compute, spec, setup) is None:
                    progress = ranking.job(compute, spec, setup).work(run, report)
                    if progress.stopped:
                        return progress
            if subject.settings.explained and not spec.remote:
                run.stage = "Attributing the scores of hubs"
                compute.retriever(model)  # may rule out some methods
                if (attribution := _attribution(compute, subject)) is not None:
                    return attribution.work(run, report)
            return Progress(total, total, 0, 0, 0.0)

        def n_done() -> int:
            attribution = _attribution(compute, subject)
            done = attribution is None or not attribution.has_left()
            return total if done and _summary(compute, subject) is not None else 0

        def failures() -> Mapping[str, str]:
            attribution = _attribution(compute, subject)
            return {} if attribution is None else attribution.failures()

        scope = f"{corpus.name} {corpus.drawn} {subject.settings.explained}"
        again = partial(self.job, subject=subject)
        return compute.model_job(
            model,
            hubs_method(subject.settings.top),
            scope,
            total,
            work,
            again,
            n_done=n_done,
            failures=failures,
            counts_items=False,
            doing="hubs",
        )

    def summarize(self, compute: Compute, subject: Asked[Collection]) -> HubSummary | None:
        """The in-degrees, with the words of hubs if those are computed; None until corpus and
        control are ranked.

        Raises:
            UserError: the corpus cannot be read.
        """
        summary = _summary(compute, subject)
        method = words_method(compute, subject.spec)
        if summary is None or method is None or not subject.settings.explained:
            return summary
        words = hub_words(compute, summary, method)
        return summary if words is None else replace(summary, words=words, words_method=method)

    def verdict(self, summary: HubSummary) -> str:
        """Skewness with and without word order, whether they differ, and the top hub."""
        top, degrees = summary.asked.settings.top, summary.original
        skewness, shuffled = degrees.skewness, summary.control.skewness
        queries, documents = degrees.n_queries, len(summary.ids)
        scope = f"{counted(queries, 'query')} and {counted(documents, 'document')}"
        head = f"{summary.name}: over {scope}, "
        if degrees.n_without == queries:
            return f"{head}no query retrieves a document other than its relevant ones."
        if skewness is None or shuffled is None or summary.comparison is None:
            return f"{head}every document is in the top {top:,} of equally many queries."
        random = degrees.random_skewness
        by_chance = "" if random is None else f" (random retrieval: {random:.2f})"
        difference = summary.comparison.difference.text("+.2f")
        sentence = (
            f"{head}the skewness of in-degrees in the top {top:,} is {skewness.text('.2f')}"
            f"{by_chance}, and {shuffled.text('.2f')} with the words of each document in random "
            f"order ({MEAN_OF_ORDERS}; difference {difference}). {summary.comparison.sentence}"
        )
        hub = summary.hubs[0]
        return (
            f"{sentence} The top hub, {summary.ids[hub]}, is in the top {top:,} of "
            f"{degrees.counts[hub]:,} of the {len(summary.others(hub)):,} queries that it does not "
            f"answer ({summary.control.counts[hub]:,.0f} with random word order)."
        )

    def remarks(self, summaries: Sequence[HubSummary]) -> list[str]:
        """Queries that retrieve only relevant documents or nothing, and those whose top k depends
        on the order of the corpus."""
        remarks = []
        for summary in summaries:
            degrees, top = summary.original, summary.asked.settings.top
            queries = counted(degrees.n_queries, "query")
            if 0 < degrees.n_without < degrees.n_queries:
                words = (
                    "retrieves no document other than its relevant ones"
                    if degrees.n_without == 1
                    else "retrieve no document other than their relevant ones"
                )
                remarks.append(f"{summary.name}: {degrees.n_without:,} of {queries} {words}.")
            if degrees.n_tied:
                remarks.append(
                    f"{summary.name}: for {degrees.n_tied:,} of {queries}, documents at ranks "
                    f"{top:,} and {top + 1:,} have equal scores. The one that comes first in the "
                    "corpus counts; in another order, other documents would be hubs."
                )
        return remarks

    def provenance(self, summary: HubSummary) -> Provenance:
        collection = summary.asked.corpus
        return of_model(
            summary.model,
            hubs_method(summary.asked.settings.top),
            collection.name,
            n_queries=summary.original.n_queries,
            n_documents=len(summary.ids),
            selection=collection.drawn,
            control=f"{CONTROL}, {MEAN_OF_ORDERS}",
        )


_corpora: LRUCache[Collection] = LRUCache(8)
_controls: LRUCache[Collection] = LRUCache(8 * ORDERS)
_summaries: LRUCache[HubSummary] = LRUCache(32)


def controls_of(corpus: Collection) -> tuple[Collection, ...]:
    """The same corpus with each document's words in each of the random orders, cached."""
    return tuple(
        _controls.get((corpus.digest, order), partial(control, corpus, order))
        for order in range(ORDERS)
    )


def _summary(compute: Compute, subject: Asked[Collection]) -> HubSummary | None:
    """The in-degrees without the words of hubs; None while a ranking is missing."""
    corpus, settings, model = subject.corpus, subject.settings, compute.identify(subject.spec)
    original, *shuffled = (
        degrees(compute, subject.spec, collection, settings.top)
        for collection in (corpus, *controls_of(corpus))
    )
    orders = ShuffledInDegrees(tuple(index for index in shuffled if index is not None))
    if original is None or len(orders.indexes) < ORDERS:
        return None
    key = (str(compute.root), model.key, subject.spec.name, corpus.digest, settings)
    ids = document_ids(corpus)
    return _summaries.get(
        key,
        lambda: HubSummary(model, subject, ids, original, orders, original.minus(orders), {}, None),
    )


def _attribution(compute: Compute, subject: Asked[Collection]) -> Job | None:
    """The job that attributes the scores of the first hubs; None while a ranking is missing, or if
    hubs are not attributed."""
    summary, method = _summary(compute, subject), words_method(compute, subject.spec)
    if summary is None or method is None or not subject.settings.explained:
        return None
    pairs = [pair for hub in explained_hubs(summary) for pair in hub.pairs(summary)]
    scope = f"hubs of {subject.corpus.name}"
    return compute.attribution_job(subject.spec, method, pairs, scope)


HUBS = register(Hubs())
