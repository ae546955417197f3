"""The declaration of the study `why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from poslens.arguments import evidence_span
from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.datasets.corpus import Query
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.why import Wanted, why
from poslens.attribution.evaluation.why_causes import CAUSES, LEAST_OF_ALONE, Cause, Why, why_method
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.jobs.items import compute_missing, random_order
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.rankings import fingerprint
from poslens.cache.kinds.study_items import WhyItem, explanations
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import Compute
from poslens.compute.item_job import stored_job
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job
from poslens.figures.palettes import shorten
from poslens.paired import MeasuredModel
from poslens.parameters import Integer, Parameters, Settings, Text
from poslens.rows import PERCENT, Table
from poslens.studies.ranking.service import searched
from poslens.studies.why.figures import chart
from poslens.studies.why.search import Searcher, named_document, opened, require_ranking
from poslens.studies.why.summary import TABLES, WhyCorpus, WhySummary, everything, sentence
from poslens.study import Asked, Figure, Study, register
from poslens.study_part import MAX_PAIRS, Number, StudyPart, number

TOP = 10

_CHANGES: Mapping[Cause, str] = {
    "competitor": "retrieved if near-duplicates and other relevant documents are removed",
    "not read": "retrieved if the whole document is read",
    "position": "retrieved if the evidence is moved",
    "dilution": "retrieved if the document is reduced to its evidence",
    "no match": "not retrieved after any of these changes",
}
"""What brings a missed document into the top k, by cause, in the order that changes are tried."""


def _numbers(summary: WhySummary) -> list[Number]:
    missed = "share of query-document pairs whose relevant document is not in the top 10"
    numbers = number("missed", missed, summary.missed, PERCENT, measure=summary.measures[0])
    for cause, change in _CHANGES.items():
        name = f'share of misses with the cause "{cause}" ({change})'
        key, share = cause.replace(" ", "_"), summary.share(cause)
        numbers += number(key, name, share, PERCENT, unit="misses")
    return numbers


PART = StudyPart(
    "misses",
    "Causes of missed documents",
    "The changes in parentheses are tried in the order listed. The first change that brings a "
    "document into the top 10 determines the cause; a later change might do so too.",
    "pairs",
    _numbers,
    {"queries": MAX_PAIRS},
    needs_queries=True,
)


class WhyStudy(Study[WhyCorpus, Asked[WhyCorpus], WhySummary]):
    """Changes each target document that is not in the top k in one way at a time, and ranks it
    again."""

    name = "why"
    question = "What keeps a document out of the top k, and which change would bring it in?"
    unit = "pair"
    needs = "queries"
    reads = (
        "One thing is changed at a time, and the document is ranked again. The cause is named "
        "after the first change that brings the document into the top k and is not ruled out."
    )
    limits = (
        "The changes are tried one by one, in this order: remove near-duplicates and other "
        "relevant documents that rank above; read the whole document in windows and keep the best "
        "score; move the evidence to the position that scores highest; use the evidence alone as "
        "the document. Each has a control: a similar change that does not address the cause. "
        "Position is ruled out if moving another sentence also brings the document into the top k "
        "with at least half of the gain in score, or if it gains less than "
        f"{LEAST_OF_ALONE:.0%} of what the evidence alone gains. If the model reads less than half "
        "of the evidence until it is moved, the cause is not read. If no change suffices, the "
        "cause is reported as no match between query and evidence."
    )
    shares = (
        "Shares are of the model's misses; brackets are 95% bootstrap intervals over documents, if "
        "there are 10 or more, and Agresti-Coull intervals for shares of 0% and 100%."
    )
    parameters = Parameters(
        top=Integer(
            title="Top k",
            default=TOP,
            low=1,
            high=1_000_000,
            help="A document is missed if it is not in the top k.",
        ),
        queries=Integer(
            default=0,
            low=0,
            help="Explain this many queries, spread evenly over the data set; 0 explains all.",
        ),
        query=Text(
            help="Explain one query: its id in the data set, or any text (then with --document).",
        ),
        document=Text(help="Explain one target document: its id in the corpus."),
        evidence=Text(
            help="The passage of --document that answers the query. By default the data set's "
            "evidence or, if there is none, the sentence that scores highest on its own.",
        ),
    )
    compared = ("MiniLM", "MiniLM-primacy")
    tables = TABLES
    figures = (Figure("Causes of misses", chart),)
    part = PART

    def corpus(self, data: DataSet, settings: Settings) -> WhyCorpus:
        """All queries with their relevant documents, or the query and document that the settings
        name.

        Raises:
            UserError: the data set has no relevance judgments and no pair is named, or it lacks
                the query or the document.
        """
        if settings.evidence and not settings.document:
            raise UserError(
                "The evidence needs the document that contains it: name the document, too."
            )
        if settings.queries and settings.query:
            raise UserError("`queries` has no effect next to `query`: leave one of them out.")
        collection = searched(data)
        if not any(query.relevant for query in collection.queries):
            return _typed(collection, settings)
        named = [
            query
            for query in collection.queries
            if settings.query in (None, query.query_id, query.text)
        ]
        if settings.document:
            judged = [query for query in named if settings.document in query.pairs]
            if not judged or settings.evidence:
                return _typed(collection, settings)
            named = judged
        if not named:
            lacks = (
                "no query" if collection.query_text(settings.query) is None else "no judgments for"
            )
            raise UserError(
                f"{data.title} has {lacks} {settings.query[:60]!r}: also name the document that "
                "it should retrieve."
            )
        named = [query for query in named if query.pairs]  # whose documents the corpus has
        chosen = spread_evenly(named, settings.queries or len(named))
        corpus = fingerprint(collection)
        items = tuple(
            _item(data, corpus, query, document)
            for query in chosen
            for document in query.pairs
            if settings.document in (None, document) and document not in collection.excluded(query)
        )
        if not items:
            raise UserError(
                f"The corpus of {data.title} lacks all documents that are judged relevant, or they "
                "have their query's id: add them under another id, or name a query and a document."
            )
        words = (
            "" if len(chosen) == len(named) else f"{counted(len(chosen), 'query')}, spread evenly"
        )
        if settings.query or settings.document:
            words = _asked(settings.query, settings.document)
        typed = len(items) == 1 and bool(settings.query or settings.document)
        return WhyCorpus(collection, items, words, typed)

    def notes(self, data: DataSet, corpus: WhyCorpus) -> list[str]:
        """Sentences on a query of one word that is not an id, because it may be a mistyped one, and
        on judged documents that cannot be found."""
        item = corpus.items[0]
        if corpus.typed and not item.query_id and " " not in item.query:
            return [f"{data.title} has no query with the id {item.query}: it is used as text."]
        if corpus.typed:
            return []
        reasons = {
            "outside the corpus, which no search can find": corpus.collection.n_lost,
            "with the same id as the query, excluded as in BEIR": corpus.collection.n_excluded,
        }
        return [
            f"Not counted as missed: {counted(n, 'judged document')} {reason}."
            for reason, n in reasons.items()
            if n
        ]

    def require_fit(self, spec: RetrieverSpec) -> None:
        require_ranking(spec)

    def job(self, compute: Compute, subject: Asked[WhyCorpus]) -> Job:
        """A job that explains the pairs of queries and target documents; progress counts pairs."""
        top, items = subject.settings.top, subject.corpus.items
        method, collection = why_method(top), subject.corpus.collection

        def work(
            given: Compute, retriever: Retriever, model: ModelKey, options: RunOptions
        ) -> Progress:
            store = explanations(given.root)
            options.on_stage("Reading documents")
            corpus = opened(given, model, retriever, collection, options)
            searcher = Searcher(corpus, retriever, options)
            options.on_stage("Reading queries" if searcher.indexed else "Scoring documents")
            missing = store.missing(model, method, items, retry=options.retry_failed)
            searcher.prepare([item.query for item in missing])
            options.on_stage("Explaining ranks")

            def explain(item: WhyItem) -> Why:
                searched = searcher.search(item.query, item.query_id)
                number = corpus.number_of.get(item.document_id)
                if number is None:
                    raise UserError(f"The corpus has no document {item.document_id[:80]!r}.")
                (text,) = corpus.texts([number])
                wanted = Wanted(
                    item.query,
                    item.document_id,
                    number,
                    text,
                    item.evidence,
                    item.source,
                    item.language,
                )
                row = collection.row_of.get(item.query_id)
                relevant = (
                    frozenset() if row is None else frozenset(collection.queries[row].relevant)
                )
                return why(wanted, searched, top, relevant - {item.document_id})

            in_turn = [items[number] for number in random_order(len(items))]
            return compute_missing(store, model, method, in_turn, explain, options=options)

        job = stored_job(
            compute,
            subject.spec,
            method,
            items,
            explanations,
            work,
            scope=f"{collection.name}: {_scope(subject.corpus)}",
            # The log must not contain typed queries.
            doing="why" if subject.corpus.typed else f"why, {subject.corpus.selection}",
            adaptive=True,  # ranks determine which documents are changed, and how
        )
        names = {item.name: f"{item.query_id} {item.document_id}".strip() for item in items}

        def failures() -> dict[str, str]:
            return {names[name]: reason for name, reason in job.failures().items()}

        return replace(job, failures=failures)

    def summarize(self, compute: Compute, subject: Asked[WhyCorpus]) -> WhySummary | None:
        summary = self._of_stored(compute, subject)
        n = len({item.name for item in subject.corpus.items})
        if len(summary.explained) + len(summary.failed) < n:
            return None
        if not summary.explained:
            reason = next(iter(summary.failed.values()), "there is no document to explain.")
            raise UserError(f"{subject.spec.name}: {reason}")
        return summary

    def so_far(self, compute: Compute, subject: Asked[WhyCorpus]) -> WhySummary | None:
        """The explanations of a random sample, those stored so far; None while there are too few
        for an interval."""
        summary = self._of_stored(compute, subject)
        return summary if len(summary.explained) >= MIN_DOCUMENTS else None

    def _of_stored(self, compute: Compute, subject: Asked[WhyCorpus]) -> WhySummary:
        model, corpus = compute.identify(subject.spec), subject.corpus
        method = why_method(subject.settings.top)
        stored = explanations(compute.root).select(model.key, method, corpus.items)
        asked = (subject.spec.name, subject.settings.top, corpus.selection, corpus.typed)
        return self.summaries.get(
            (model.key, *asked, stored.digest),
            lambda: WhySummary(model, subject, stored.results, stored.failed),
        )

    def limits_of(self, summaries: Sequence[WhySummary]) -> str:
        """The limitations, and what shares and brackets are, unless documents were selected."""
        if all(summary.asked.corpus.typed for summary in summaries):
            return self.limits
        return f"{self.limits} {self.shares}"

    def tables_of(self, summaries: Sequence[WhySummary]) -> Mapping[str, Table[Any]]:
        """The tables, without the counts of causes for a selected document: the verdict names its
        only one."""
        if not all(summary.asked.corpus.typed for summary in summaries):
            return self.all_tables
        return {name: table for name, table in self.all_tables.items() if name != "causes"}

    def verdict(self, summary: WhySummary) -> str:
        """The ranks and the cause of one document, or the number of misses and their causes."""
        if summary.asked.corpus.typed and len(summary.explained) == 1:
            (explained,) = summary.explained.values()
            return f"{summary.name}: {sentence(explained, summary.asked.spec)}"
        n, total, share = len(summary.misses), len(summary.explained), summary.missed
        in_percent = "" if share is None else f" ({share.text('.0%')})"
        top = f"the top {summary.asked.settings.top:,}"
        missed = f"{summary.name} misses {n:,} of {total:,} query-document pairs{in_percent}"
        head = f"{missed}: the relevant document is not in {top}." if n else f"{missed} in {top}."
        n_documents = next(iter(summary.explained.values())).n_documents
        if not n and n_documents <= summary.asked.settings.top:
            head = f"{missed}: {everything(n_documents, summary.asked.settings.top)}"
        parts = [
            f"{cause} {share.text('.0%')}"
            for cause in sorted(CAUSES, key=summary.count, reverse=True)
            if summary.count(cause) and (share := summary.share(cause)) is not None
        ]
        if not parts:
            return head
        sentences = [f"{head} Causes: {', '.join(parts)}."]
        if "not read" not in summary.causes:
            sentences.append(
                f"How much of a text {summary.name} reads is unknown, so it was not tested whether "
                "the evidence is not read, which can be the cause of any of these misses."
            )
        unspecific = [
            f"{n:,} of the {summary.count(cause):,} misses with the cause “{cause}”"
            for cause in CAUSES
            if (n := summary.unspecific(cause))
        ]
        if unspecific:
            sentences.append(
                f"For {' and '.join(unspecific)}, the control also brings the document into "
                f"{top}, so these misses are no evidence of the cause."
            )
        return " ".join(sentences)

    def measured(self, summary: WhySummary) -> MeasuredModel | None:
        """The shares of misses; None if one document is asked about."""
        typed = summary.asked.corpus.typed
        return None if typed else MeasuredModel(summary.name, summary.measures)

    def provenance(self, summary: WhySummary) -> Provenance:
        asked = summary.asked
        n_documents = next(iter(summary.explained.values())).n_documents
        return of_model(
            summary.model,
            why_method(asked.settings.top),
            asked.corpus.collection.name,
            n_queries=len({item.query for item in summary.items.values()}),
            n_documents=n_documents,
            selection=(f"top {asked.settings.top}", asked.corpus.selection),
            control="each change made to other sentences or documents",
        )


def _item(data: DataSet, corpus: str, query: Query, document: str) -> WhyItem:
    pair = data.pairs.get(query.pairs[document])
    span = query.span if document == query.evidence_document else None
    if span is None and pair is not None:
        span = pair.evidence
    language = query.language if pair is None else pair.language
    return WhyItem(
        data.name, query.query_id, query.text, document, corpus, span, "data set", language
    )


def _typed(collection: Collection, settings: Settings) -> WhyCorpus:
    """One query with any text and one document of the corpus, as the settings name them.

    Raises:
        UserError: one of them is not given, or the corpus lacks the document.
    """
    if not settings.query and any(query.relevant for query in collection.queries):
        raise UserError(
            f"No query of {collection.title} has the relevant document "
            f"{settings.document[:60]!r}: check its id, or name a query, too."
        )
    if not settings.query or not settings.document:
        raise UserError(
            f"{collection.title} has no relevance judgments, so PosLens can't list all misses: "
            "name a query and the document that it should retrieve."
        )
    document = named_document(collection, settings.document)
    # An id has no spaces; the queries need not be read for a typed text.
    text = None if " " in settings.query else collection.query_text(settings.query)
    span = evidence_span(document.text, settings.evidence)
    item = WhyItem(
        collection.name,
        "" if text is None else settings.query,
        settings.query if text is None else text,
        document.key,
        fingerprint(collection),
        span,
        "marked",
        document.language,
    )
    return WhyCorpus(collection, (item,), _asked(settings.query, document.key), typed=True)


def _asked(query: str | None, document: str | None) -> str:
    """The query and the document that are named, as text."""
    named = {"query": shorten(query or "", 60), "document": document}
    return ", ".join(f"{what} {name}" for what, name in named.items() if name)


def _scope(corpus: WhyCorpus) -> str:
    """Text that identifies the selected queries and documents."""
    first, n = corpus.items[0], len(corpus.items)
    return f"{first.corpus} {corpus.selection} {n} {first.name} {first.evidence} {first.source}"


WHY = register(WhyStudy())
