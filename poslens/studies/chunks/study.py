"""The declaration of the study `chunks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import require_top
from poslens.attribution.evaluation.audit_workload import plan_workload
from poslens.attribution.evaluation.chunk_plan import MEASURES, choose, settings_of
from poslens.attribution.evaluation.comparison import adjusted
from poslens.attribution.evaluation.comparison_words import POINTS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.chunk_plan import ChunkPlanStore
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job, Report, Run
from poslens.parameters import Numbers, Parameters, Settings, Several
from poslens.studies.audit.pace import reading_estimate, with_estimate
from poslens.studies.audit.run import require_family
from poslens.studies.audit.study import AUDIT
from poslens.studies.audit.summary import sample
from poslens.studies.chunks.run import run_plan
from poslens.studies.chunks.summary import TABLES, ChunkCorpus, ChunkSummary, shares_by_size
from poslens.studies.ranking.service import searched, store_of
from poslens.study import Asked, Figure, Study, register

KINDS = ("windows", "titled", "late")


class ChunkStudy(Study[ChunkCorpus, Asked[ChunkCorpus], ChunkSummary]):
    """Tries settings of an index on a corpus, selects one on half of the documents and evaluates
    it on the other half."""

    name = "chunks"
    question = "Which window, overlap and title prefix should an index use?"
    unit = "result"
    needs = "documents"
    reads = (
        "Each marker is one way to chunk documents. Settings further right have a larger index; "
        "settings further down leave fewer sentences unretrieved. The setting is selected on half "
        "of the documents and tested on the other half, which the figure and the tables show."
    )
    limits = (
        "A sentence is unretrieved if its own document is not in the top k. Evidence is cut if no "
        "chunk contains all of it within the part that the model reads. Both depend on the corpus "
        "and its size, so plan on the corpus that you will index. Encoding was timed one document "
        "at a time on this machine."
    )
    parameters = Parameters(
        windows=Numbers(
            title="Window sizes",
            default=(64, 128, 256),
            low=4,
            high=100_000,
            whole=True,
            help="Window sizes in tokens (words and punctuation marks for BM25 and endpoints), "
            "separated by commas.",
        ),
        overlaps=Numbers(
            default=(0, 25),
            low=0,
            high=90,
            help="Overlaps of consecutive windows in percent of the window size, separated by "
            "commas.",
        ),
        kinds=Several(
            title="Chunking",
            default=KINDS,
            options=KINDS,
            closed=True,
            help="Ways to chunk that are compared with whole documents: windows, titled (windows "
            "that begin with the document's title), late (one pass over the text, then windows of "
            "its token vectors).",
        ),
        top=AUDIT.parameters["top"],
        documents=replace(
            AUDIT.parameters["documents"],
            help="Plan on a random sample of this many documents (default: all).",
        ),
        seed=AUDIT.parameters["seed"],
    )
    tables = TABLES
    figures = (
        Figure(
            "Unretrieved sentences by size of the index",
            shares_by_size,
            intervals="settings",
            numbers=("unretrieved",),
        ),
    )

    def corpus(self, data: DataSet, settings: Settings) -> ChunkCorpus:
        """The corpus of the data set or a sample of it, and the settings to try. Settings with
        titles are left out if no document has a title.

        Raises:
            UserError: the corpus cannot be read, or the sample is too small.
        """
        whole = searched(data)
        collection = sample(whole, settings.documents, settings.seed)
        notes = [f"Sample: {collection.drawn}."] if collection.drawn else []
        titled = "titled" in settings.kinds
        if titled and not any(document.title for document in collection.documents()):
            titled = False
            notes.append(
                "No document has a title, so windows without titles are tried. Titles are read "
                "from the column title of a table of documents (with the column text) or of a "
                "BEIR or PolEval corpus; in files of pairs, this column is ignored."
            )
        if not any(query.span for query in collection.queries):
            why = "No query marks its evidence" if collection.queries else "There are no queries"
            notes.append(f"{why}, so cut evidence is not counted.")
        tried = settings_of(
            settings.windows,
            settings.overlaps,
            windows="windows" in settings.kinds,
            titled=titled,
            late="late" in settings.kinds,
        )
        return ChunkCorpus(collection, tried, tuple(notes))

    def notes(self, data: DataSet, corpus: ChunkCorpus) -> list[str]:
        return list(corpus.notes)

    def require_fit(self, spec: RetrieverSpec) -> None:
        require_family(spec)

    def job(self, compute: Compute, subject: Asked[ChunkCorpus]) -> Job:
        """A job that tries the settings that have no result; progress counts documents times
        settings.

        Raises:
            UserError: the model's files are not on this machine, or the top includes every
                document.
        """
        model = compute.identify(subject.spec)
        collection, settings = subject.corpus.collection, subject.corpus.index_settings
        store = store_of(ChunkPlanStore, compute, collection)
        total = len(store.keys) * len(settings)
        require_top(subject.settings.top, len(store.keys))

        def work(run: Run, report: Report) -> Progress:
            retriever = compute.retriever(model)
            options = compute.run_options(subject.spec, run, report)
            return run_plan(
                store,
                retriever,
                model.key,
                settings,
                device=model.device,
                options=options,
            )

        def n_done() -> int:
            return total - sum(len(store.missing(model.key, setting)) for setting in settings)

        method = Method("chunk_plan", {"settings": "+".join(map(str, settings))})
        scope = f"{collection.name} {collection.drawn}".rstrip()
        again = partial(self.job, subject=subject)
        job = compute.model_job(
            model, method, scope, total, work, again, n_done=n_done, doing="chunks"
        )
        return with_estimate(job, subject.spec, collection, settings, plan_workload)

    def estimate(
        self,
        compute: Compute,
        subject: Asked[ChunkCorpus],
        *,
        load: bool = False,
        retry_failed: bool = False,
    ) -> str:
        """The number of texts and tokens that the model will read, and the time if the model was
        timed in this process; empty for BM25 and endpoints."""
        settings = subject.corpus.index_settings
        return reading_estimate(
            compute,
            subject.spec,
            subject.corpus.collection,
            settings,
            plan_workload,
            lambda work: (
                f"{len(settings)} settings, {work.document_texts:,} documents or windows and "
                f"{work.queries:,} sentences and queries"
            ),
            load=load,
        )

    def summarize(self, compute: Compute, subject: Asked[ChunkCorpus]) -> ChunkSummary | None:
        """The selected setting and its evaluation; None while results of documents are missing.

        Raises:
            UserError: the model can read no document.
        """
        model, corpus, top = compute.identify(subject.spec), subject.corpus, subject.settings.top
        settings, store = (
            corpus.index_settings,
            store_of(ChunkPlanStore, compute, corpus.collection),
        )
        require_top(top, len(store.keys))
        if any(store.missing(model.key, setting) for setting in settings):
            return None
        tried, left_out = store.tried(model.key, settings, model.device)
        if not tried or tried[0].setting != settings[0]:
            raise UserError(
                f"{subject.spec.name} has no index of whole documents: "
                f"{next(iter(left_out.values()), 'it can read none')}"
            )
        key = (store.root, corpus.collection.name, store.fingerprint, model.key, model.device, top)
        counts = tuple((str(each.setting), len(each.documents), each.time) for each in tried)

        def summary() -> ChunkSummary:
            choice = choose(tried, top)
            changes = {} if choice is None else choice.changes(top)
            queries = {
                document: tuple(query.query_id for query, _ in answered)
                for document, answered in store.queries.items()
            }
            return ChunkSummary(model, subject, tuple(tried), left_out, choice, changes, queries)

        return self.summaries.get((*key, counts), summary)

    def together(self, summaries: Sequence[ChunkSummary]) -> list[ChunkSummary]:
        with_p = iter(
            adjusted([each for summary in summaries for each in summary.changes.values()])
        )
        return [
            replace(summary, changes={name: next(with_p) for name in summary.changes})
            for summary in summaries
        ]

    def remarks(self, summaries: Sequence[ChunkSummary]) -> list[str]:
        """Sentences on settings that were left out, and on sizes that are not in tokens."""
        remarks = []
        for summary in summaries:
            reasons: dict[str, list[str]] = {}
            for setting, reason in summary.left_out.items():
                reasons.setdefault(reason, []).append(setting)
            remarks += [f"Left out {', '.join(names)}: {why}" for why, names in reasons.items()]
            if summary.unit == "words":
                hidden = summary.asked.spec.without_files
                why = "doesn't show its tokens" if hidden else "has no tokens"
                remarks.append(
                    f"{summary.name} {why}, so its windows count words and punctuation marks: "
                    "choose a splitter that counts both."
                )
        return remarks

    def verdict(self, summary: ChunkSummary) -> str:
        """The setting to use, the changes on held-out documents, and the size of the index."""
        choice, advice, plan = summary.choice, summary.recommendation, summary.plan
        if choice is None:
            return f"{summary.name}: keep whole documents. {advice.reason}"
        unit = summary.unit
        chosen, reference = (
            tried.setting.title(unit) for tried in (choice.chosen, choice.reference)
        )
        changes = "; ".join(
            f"{MEASURES[name].heading} "
            + (change.text("+.1f", 100, POINTS) if MEASURES[name].is_share else change.text())
            for name, change in summary.changes.items()
            if change is not None
        )
        if not advice.recommended:
            head = (
                f"held-out documents don't confirm that {chosen} are better than {reference}"
                if summary.decided
                else f"no difference that this corpus can show between {chosen} and {reference}"
            )
            return (
                f"{summary.name}: {head}: keep whole documents. {advice.reason} Changes "
                f"from {reference} to {chosen}: {changes or 'none'}."
            )
        sizes = [
            f"{tried.vectors.value:.1f}" for tried in (plan, choice.reference) if tried.vectors
        ]
        return (
            f"{summary.name}: use {chosen} rather than {reference}. Changes on held-out documents: "
            f"{changes}. The index holds {' vectors per document instead of '.join(sizes)}."
        )

    def provenance(self, summary: ChunkSummary) -> Provenance:
        collection, top = summary.asked.corpus.collection, summary.asked.settings.top
        settings = ", ".join(str(tried.setting) for tried in summary.tried)
        words = (f"top {top}", f"judged on {len(summary.held_out):,} held-out documents")
        return of_model(
            summary.model,
            f"chunk_plan({settings})",
            collection.name,
            n_documents=len(summary.tried[0].documents),
            selection=(*words, collection.drawn),
        )


CHUNKS = register(ChunkStudy())
