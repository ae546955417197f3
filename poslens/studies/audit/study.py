"""Audit: which sentences of a corpus do not retrieve their own document?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter

import numpy as np

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Estimate
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import QUERY_FORMS, TOP, audit_method, require_top
from poslens.attribution.evaluation.audit_workload import workload
from poslens.attribution.evaluation.chunks import chunks_of, require_fit
from poslens.attribution.evaluation.comparison import SHARE_MARGIN, Verdict, estimate_of
from poslens.attribution.evaluation.comparison_words import POINTS
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.dense import FAMILY as DENSE
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.kinds.rankings import fingerprint
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job, Report, Run
from poslens.paired import ItemMeasure, MeasuredModel
from poslens.parameters import Choice, Integer, Parameters, Settings, Several
from poslens.rows import PERCENT, PERCENTAGE_POINTS
from poslens.studies.audit.pace import measured_pace, reading_estimate, with_estimate
from poslens.studies.audit.run import require_family, run_audit
from poslens.studies.audit.summary import (
    AuditIndex,
    AuditSummary,
    compared,
    limit_sentence,
    reached,
    repeated_sentence,
    sample,
    summary_of,
    tokens_read,
    unretrieved_sentence,
    whole_corpus,
)
from poslens.studies.audit.tables import OF_SENTENCES, TABLES, unretrieved_by_position
from poslens.studies.ranking.service import store_of
from poslens.study import Figure, Study, register
from poslens.study_part import CONSTANT, Number, Scope, StudyPart, number

AFTER_SHUFFLING: Mapping[Verdict, str] = {
    "higher": "Sentences near the end retrieve their document less often, even after shuffling.",
    "lower": "Sentences near the beginning retrieve their document less often, even after "
    "shuffling.",
    "equivalent": "After shuffling, sentences near the beginning and near the end retrieve their "
    f"document equally often, within {100 * SHARE_MARGIN:g}{POINTS}.",
    "too few documents": "There are too few documents to decide whether, after shuffling, "
    "sentences near the beginning or near the end retrieve their document less often.",
}


def _measure(summary: AuditSummary) -> ItemMeasure:
    """The share of each document's sentences that are unretrieved."""
    index = summary.index
    corpus = fingerprint(index.collection)
    rows = {
        (document.document_id, corpus): np.array([share])
        for document in summary.documents
        if (share := document.share("original", *index.asked)) is not None
    }
    return ItemMeasure(
        "unretrieved sentences per document",
        "documents",
        SHARE_MARGIN,
        rows,
        {item: item[0] for item in rows},
        share=True,
        label=itemgetter(0),
    )


def _numbers(summary: AuditSummary) -> list[Number]:
    share, truncations = "share of unretrieved sentences", summary.truncations
    change = (
        f"{share}, last minus first third, sentences in random order (positive: more unretrieved "
        "near the end, by primacy or truncation)"
    )
    unit = limits.unit(summary.model.spec)
    read = f"number of {unit} that the model reads of long texts before it truncates"
    whole_text = f"number of {unit} of the longest text tried, which the model reads to the end"
    tokens, tokens_whole = (
        None if n is None else Estimate(n, n=len(truncations)) for n in tokens_read(truncations)
    )
    shares, whole = summary.shares, summary.share_among(read=False)
    random = f"{share}, sentences in random order"
    return [
        *number("unretrieved", share, shares["original"], PERCENT, measure=_measure(summary)),
        *number("unretrieved_random_order", random, shares["random"], PERCENT),
        *number("unretrieved_truncated", f"{share} among those not read whole", whole, PERCENT),
        *number(
            "last_minus_first_random_order",
            change,
            estimate_of(summary.last_minus_first["random"]),
            PERCENTAGE_POINTS,
        ),
        *number("tokens_read", read, tokens, ",.0f", unit="texts"),
        *number("longest_text_read", whole_text, tokens_whole, ",.0f", unit="texts"),
    ]


def _small_corpus(index: AuditIndex, scope: Scope) -> AuditIndex:
    """The index, with a top of 1 if the corpus has no more documents than the top."""
    n = len(store_of(AuditStore, scope.compute, index.collection).keys)
    return replace(index, top=1) if index.top >= n else index


PART = StudyPart(
    "audit",
    "Truncation and unretrieved sentences",
    "The queries are the documents' own sentences, including those past the context limit; users "
    "phrase theirs differently. Documents that PosLens cannot split into sentences, such as Thai "
    "ones, are searched but give no queries.",
    "documents",
    _numbers,
    subject=_small_corpus,
)


class Audit(Study[Collection, AuditIndex, AuditSummary]):
    """Every sentence of a corpus is searched for in an index of the whole corpus."""

    name = "audit"
    question = "Which sentences fail to retrieve their own document?"
    unit = "document"
    needs = "documents"
    reads = (
        "Each sentence of the corpus is a query, including those past a model's context limit. It "
        "is unretrieved if its own document is not in the top k. Thin lines show the same "
        "documents with shuffled sentences: a position effect that remains is not due to content."
    )
    limits = (
        f"Brackets are 95% bootstrap intervals over documents; {CONSTANT}; none with fewer than 10 "
        "documents. Verdicts use p, unadjusted for one model after shuffling and for what an index "
        'recovers, Holm-adjusted for differences between models, so they can be "too few '
        'documents" even if the interval excludes 0. Equivalent: the 90% interval of the '
        f"difference is within ±{100 * SHARE_MARGIN:g}{POINTS}, even if the 95% interval "
        "excludes 0. Where models truncate is measured on the beginnings of up to three long "
        "documents, or on documents joined to one long text. Last minus first: the share in the "
        "last third of each document minus that in the first. Shares depend on the size of the "
        "corpus: compare models on the same corpus."
    )
    parameters = Parameters(
        top=Integer(
            title="Top k",
            default=TOP,
            low=1,
            high=1_000_000,
            help="A sentence is unretrieved if its document is not in the top k.",
        ),
        chunks=Several(
            title="Chunking",
            default=("whole",),
            options=(
                "whole",
                "windows:64:16",
                "windows:128:32",
                "windows:256:64",
                "late:64",
                "late:128",
            ),
            check=chunks_of,
            help="How documents are chunked: whole; windows:128:32 (windows of 128 tokens that "
            "overlap by 32); or late:128 (late chunking: one pass over the text, then windows of "
            "128 token vectors). With several kinds, PosLens compares each with the first.",
        ),
        search_for=Choice(
            title="Queries",
            default="sentence",
            options=QUERY_FORMS,
            help="sentence: each sentence is a query. question: each query is a keyword question, "
            "a sentence without punctuation or frequent words, as typed into a search box.",
        ),
        documents=Integer(
            default=None,
            low=2,
            help="Audit a random sample of this many documents (default: all). The index "
            "then contains only the sample.",
        ),
        seed=Integer(default=0, low=0, high=1 << 31, help="Seed of the sample."),
        width=Integer(
            title="Interval width",
            default=None,
            low=1,
            high=100,
            unlimited="any",
            help="Stop once the 95% interval of the share of unretrieved sentences is at most this "
            "many percentage points wide. PosLens audits the documents in random order. By "
            "default, it audits all of them.",
        ),
    )
    compared = ("MiniLM-primacy", "MiniLM", "MiniLM-recency", "BM25")
    tables = TABLES
    figures = (
        Figure(
            "Unretrieved sentences by position",
            unretrieved_by_position,
            OF_SENTENCES,
            intervals="positions",
        ),
    )
    part = PART
    streams = True  # no result depends on later ones

    def corpus(self, data: DataSet, settings: Settings) -> Collection:
        """The whole corpus of the data set, or a sample of it."""
        return sample(whole_corpus(data), settings.documents, settings.seed)

    def notes(self, data: DataSet, corpus: Collection) -> list[str]:
        notes = [f"Sample: {corpus.drawn}."] if corpus.drawn else []
        return [*notes, *whole_corpus(data).survey.notes]

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: Collection, settings: Settings
    ) -> list[AuditIndex]:
        return [
            AuditIndex(
                spec,
                chunks_of(chunks),
                corpus,
                settings.top,
                settings.search_for,
                (settings.width or 0) / 100,
            )
            for chunks in settings.chunks
        ]

    def job(self, compute: Compute, subject: AuditIndex) -> Job:
        """Rank the sentences of documents that have no result, until the interval is as narrow as
        requested; progress counts documents of the current stage."""
        require_family(subject.spec, subject.chunks)
        model = compute.identify(subject.spec)
        collection = subject.collection
        store = store_of(AuditStore, compute, collection)
        n_all = len(store.keys)
        require_top(subject.top, n_all)

        def n_stored() -> int:
            return n_all - store.missing(model.key, subject.chunks)

        # Once the interval is narrow enough, documents without a result do not count.
        total = n_stored() if reached(store, model, subject) else n_all

        def n_done() -> int:
            return total if reached(store, model, subject) else n_stored()

        def work(run: Run, report: Report) -> Progress:
            retriever = compute.retriever(model)
            if not subject.spec.remote and isinstance(retriever, DenseRetriever):
                run.stage = "Timing the model"
                measured_pace(compute, model, retriever, collection)
            options = compute.run_options(subject.spec, run, report)
            return run_audit(
                store,
                retriever,
                model.key,
                subject.chunks,
                precision=subject.precision,
                options=options,
            )

        drawn_from = f"{collection.name} {collection.drawn}".rstrip()
        job = compute.model_job(
            model,
            audit_method(subject.chunks),
            drawn_from,
            total,
            work,
            partial(self.job, subject=subject),
            label=subject.name,
            n_done=n_done,
            failures=lambda: store.select(model.key, subject.chunks).failed,
            doing="audit",
            adaptive=True,  # it searches for the length at which the model truncates
        )
        return with_estimate(job, subject.spec, collection, subject.chunks, workload)

    def require_loaded_fit(self, compute: Compute, subject: AuditIndex) -> None:
        spec, chunks = subject.spec, subject.chunks
        if chunks.kind != "whole" and family_of(spec).has_weights:
            require_fit(compute.retriever(compute.identify(spec)), chunks)

    def estimate(
        self,
        compute: Compute,
        subject: AuditIndex,
        *,
        load: bool = False,
        retry_failed: bool = False,
    ) -> str:
        """Texts and tokens that the model will read, and the time once the model was timed in this
        process; empty for BM25 and endpoints."""
        return reading_estimate(
            compute,
            subject.spec,
            subject.collection,
            subject.chunks,
            workload,
            lambda work: (
                f"{work.document_texts:,} documents or windows (in original and random "
                f"order) and {work.queries:,} sentences and questions"
            ),
            load=load,
            most="at most " if subject.width else "",
        )

    def summarize(self, compute: Compute, subject: AuditIndex) -> AuditSummary | None:
        """The evaluated ranks of an index; None while documents are missing."""
        require_family(subject.spec, subject.chunks)
        model = compute.identify(subject.spec)
        store = store_of(AuditStore, compute, subject.collection)
        require_top(subject.top, len(store.keys))
        missing = store.missing(model.key, subject.chunks)
        if missing and not reached(store, model, subject):
            return None
        stored = store.select(model.key, subject.chunks)
        if not stored.results:
            reason = next(iter(stored.failed.values()), "there are none")
            title = subject.collection.title
            raise UserError(f"No document of {title} can be searched for: {reason}")
        return summary_of(store, model, subject, stored)

    def so_far(self, compute: Compute, subject: AuditIndex) -> AuditSummary | None:
        """The evaluated ranks of the documents that were searched for so far, a random sample of
        the corpus; None while there are too few for an interval."""
        model = compute.identify(subject.spec)
        store = store_of(AuditStore, compute, subject.collection)
        stored = store.select(model.key, subject.chunks)
        if len(stored.results) < MIN_DOCUMENTS:
            return None
        return summary_of(store, model, subject, stored)

    def together(self, summaries: Sequence[AuditSummary]) -> list[AuditSummary]:
        """Each index compared with the first one of the same model."""
        return [compared(summary, summaries[:n]) for n, summary in enumerate(summaries)]

    def measured(self, summary: AuditSummary) -> MeasuredModel:
        return summary.measured

    def verdict(self, summary: AuditSummary) -> str:
        share, control = summary.shares["original"], summary.shares["random"]
        if share is None or control is None:
            return f"{summary.name}: no sentence was searched for."
        sentences = [unretrieved_sentence(summary, share, control)]
        if summary.sample:
            sentences.append(f"Searched for: {summary.sample}.")
        if summary.too_wide:
            width = counted(round(100 * summary.index.width), "percentage point")
            sentences.append(
                "All documents were searched for, but they are too few for an interval of at most "
                f"{width}."
            )
        if repeats := repeated_sentence(summary):
            sentences.append(repeats)
        difference = summary.last_minus_first["random"]
        if control.value and difference is not None and difference.difference.interval is not None:
            sentences.append(AFTER_SHUFFLING[difference.verdict])
            if difference.verdict == "higher" and summary.n_truncated:
                sentences.append("Sentences past the context limit are counted too.")
        if summary.recovered is not None and summary.base is not None:
            change = summary.recovered.difference.times(100).text("+.1f")
            sentences.append(f"Recovered compared with {summary.base.name}: {change}{POINTS}.")
            sentences.append(summary.recovered.in_words(100, POINTS))
        limit = limit_sentence(summary.index.spec, summary.truncations)
        return " ".join([*sentences, limit]).rstrip()

    def provenance(self, summary: AuditSummary) -> Provenance:
        index = summary.index
        return of_model(
            summary.model,
            audit_method(index.chunks),
            index.collection.name,
            n_documents=len(summary.documents),
            truncated=summary.n_truncated if family_of(index.spec) is DENSE else None,
            selection=(
                f"{index.query_form}s as queries, top {index.top}",
                index.collection.drawn,
                summary.sample,
            ),
            control="each document's sentences shuffled",
        )


AUDIT = register(Audit())
