"""Ranking: how good are a model's rankings, and do they depend on where the evidence is?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation import trec_runs
from poslens.attribution.evaluation.ranking_measures import NDCG, depends_on_order
from poslens.attribution.evaluation.trec_runs import TrecRun
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance, TextPair
from poslens.compute import coverage
from poslens.compute.compute import Compute
from poslens.compute.coverage import Report
from poslens.compute.runs import Job
from poslens.names import posir_ranking_spec
from poslens.paired import DifferenceRow, MeasuredModel
from poslens.parameters import Integer, ModelName, Parameters, Settings, Several, Switch, Text
from poslens.rows import Table
from poslens.studies.ranking import service
from poslens.studies.ranking.benchmarks import EvidencePositions, pools, require_order
from poslens.studies.ranking.figures import (
    evidence_bins,
    evidence_positions,
    length_buckets,
    position_groups,
)
from poslens.studies.ranking.runs import RankedRun, ranked_run, runs_of
from poslens.studies.ranking.service import (
    Measured,
    Ranked,
    RankingSetup,
    collection_of,
    monolingual,
)
from poslens.studies.ranking.tables import BY_GROUP, OF_NDCG, TABLES, require_groups
from poslens.studies.selections import READABLE
from poslens.study import Asked, Figure, Study, register
from poslens.study_part import CONSTANT

EVIDENCE_FIGURE = "Queries by evidence position"

PRESELECTED = 4
"""Number of runs that the page compares with the models until others are selected."""


@dataclass(frozen=True)
class RankingTask:
    """What models rank: a data set's collection and, for some tables, further ones (`setups`).
    `runs` are compared with the models, `pairs` are the data set's. `excluded` is a sentence on
    pairs that some model can't read. `table` names the only table to fill, and is empty if all are
    filled."""

    setups: tuple[RankingSetup, ...]
    dataset: str
    pairs: Sequence[TextPair]
    runs: tuple[TrecRun, ...] = ()
    excluded: str = ""
    table: str = ""


class RankingStudy(Study[RankingTask, Asked[RankingSetup], Any]):
    """Each query searches the whole corpus; measures of the rankings by position of the evidence.
    Summaries are `Measured` rankings, or `EvidencePositions` for the table of those."""

    name = "rank"
    title = "Ranking"
    question = "How good are the rankings of a corpus, and do they depend on where the evidence is?"
    unit = "query"
    retries = False
    reads = (
        "Every document is scored for every query, except by cross-encoders, which score only the "
        "100 best documents of the first stage. In the charts of nDCG@10, a fuller marker means "
        "that the model reads more of the evidence."
    )
    limits = (
        "Position sensitivity index: PSI = 1 − (lowest / highest mean nDCG@10 of a bin). If the "
        "data set groups its queries by evidence position, these groups are the bins. Otherwise, "
        "and always in the table of PSI by document length, the bins are 20 equal ranges of "
        'evidence position. In that table, the row "read whole" has every query whose '
        "evidence is entirely within the context limit, however long its document is. With "
        "few queries per bin, PSI is large even without a bias, so compare it with PSI under "
        "permutation: the mean PSI after evidence positions are permuted across queries. The p "
        "of a PSI is the share of permutations whose PSI is at least as large; the p of a paired "
        "difference is two-sided, from Student's t, and Holm-adjusted. 95% intervals are "
        f"bootstrap intervals over relevant documents; {CONSTANT}. Those of success@10 (S@10) are "
        "always Agresti-Coull intervals, for as many independent queries as give the same standard "
        "error. S@10 per query is the share of queries with a relevant document in the "
        "top 10; S@10 per pair, the share of query-document pairs whose document is in the top 10."
    )
    parameters = Parameters(
        runs=Several(
            option="--run",
            default=(),
            options=(),
            help="NAME=FILE of rankings from another program, in TREC format.",
        ),
        own_corpus=Switch(
            title="Search the query's own corpus",
            help="Search only the query's part of the corpus (in PosIR, its language and domain), "
            "as in published figures. Searching the whole corpus is harder; in a corpus with "
            "several languages, it also shows whether a model prefers documents in the query's "
            "language.",
        ),
        monolingual=Switch(
            title="Search the query's language",
            help="Search only documents in the query's language, as in MultiClaim's monolingual "
            "setting. The language of a translation is that of its original.",
        ),
        first_stage=ModelName(
            title="First stage of rerankers",
            default="BM25",
            help="Model whose top 100 documents cross-encoders rerank.",
        ),
        posir=Switch(
            title="PosIR prompt and context limit",
            help="Use PosIR's query prompt with every model, and a context limit of 8,192 tokens "
            "for queries and documents. (PosIR's own ranking script uses the prompt only with "
            "Qwen3-Embedding.)",
        ),
        readable=READABLE,
        group_queries=Integer(
            title="Queries of each group",
            default=0,
            low=0,
            help="Measure this many queries of each group, drawn at random; 0 means all. For data "
            "sets with groups of queries.",
        ),
        seed=Integer(default=0, low=0, high=1 << 31, help="Seed of that draw."),
        against=Text(
            title="Other data set",
            help="Data set whose order of models --table agreement compares.",
        ),
    )
    compared = ("MiniLM-primacy", "MiniLM", "MiniLM-recency", "BM25")
    tables = TABLES
    figures = (
        Figure("nDCG@10 by evidence position", evidence_bins, OF_NDCG, half=True, intervals=""),
        Figure(
            "nDCG@10 by group of queries", position_groups, BY_GROUP, half=True, numbers=(NDCG,)
        ),
        Figure("nDCG@10 by document length", length_buckets, OF_NDCG, half=True, intervals=""),
        Figure(EVIDENCE_FIGURE, evidence_positions, ("evidence",)),
    )

    def parameters_for(self, data: DataSet) -> Parameters:
        """The parameters that apply to the data set's corpus and queries, with the registered runs
        that fit its queries."""
        collection = collection_of(data)
        runs = tuple(name for name, run in trec_runs.known().items() if run.fits(collection))
        offered = replace(self.parameters["runs"], options=runs, default=runs[:PRESELECTED])  # type: ignore[call-arg]
        hidden = {
            "against": True,
            "group_queries": collection.groups is None,
            "seed": collection.groups is None,
            "runs": not runs,
            "own_corpus": len(collection.parts) < 2,
            # Only if queries of several languages search one corpus.
            "monolingual": len(collection.parts) != 1 or len(collection.languages) < 2,
        }
        declared = {**self.parameters, "runs": replace(offered, closed=True)}  # type: ignore[call-arg]
        return Parameters(**{name: each for name, each in declared.items() if not hidden.get(name)})

    def corpus(self, data: DataSet, settings: Settings) -> RankingTask:
        """The collections to rank, and the runs.

        Raises:
            UserError: the data set has no relevance judgments, a run cannot be read, or the
                settings do not fit the table.
        """
        table = settings.table
        if (table == "agreement") != bool(settings.against):
            raise UserError("--table agreement and --against DATASET belong together: give both.")
        for name, refused, what in (
            ("pools", ("runs", "monolingual"), "ranks by models over the whole corpus"),
            ("agreement", ("runs", "readable"), "ranks every query by models"),
        ):
            for option in refused:
                if table == name and settings[option]:
                    shown = self.parameters[option].option or f"--{option}"
                    raise UserError(f"--table {name} {what}: remove {shown}.")
        setups = [_setup(data, settings)]
        if table in BY_GROUP:
            require_groups(setups[0].collection)
        if table == "pools":
            grown = pools(setups[0].collection)
            setups = [replace(setups[0], collection=collection) for collection in grown]
        if settings.against:
            from poslens.names import data_name

            against = self.read(data_name(settings.against))
            if against.name == data.name:
                raise UserError(f"{data.name} is compared with itself: choose another --against.")
            setups.append(_setup(against, settings))
        runs = tuple(runs_of(settings.runs))
        return RankingTask(tuple(setups), data.name, data.pairs, runs, table=table)

    def narrowed(
        self,
        compute: Compute,
        specs: Sequence[RetrieverSpec],
        corpus: RankingTask,
        settings: Settings,
        report: Report = lambda done, total: None,
    ) -> RankingTask:
        """The task without queries that a model cannot answer, if the settings exclude those.

        Raises:
            UserError: nothing remains, or the table does not fit the number of rankings.
        """
        names = [spec.name for spec in specs]
        for run in corpus.runs:
            if run.name in names:
                raise UserError(f"Two rankings are named {run.name}: give the run another name.")
        if corpus.table == "query_differences" and len(names) + len(corpus.runs) != 2:
            raise UserError(
                "--table query_differences compares two rankings: give exactly two of --model and "
                "--run."
            )
        if corpus.table == "agreement":
            require_order(len(names))
        if not settings.readable:
            return corpus
        if not specs:
            raise UserError(
                "--readable excludes pairs whose evidence a model truncates: add --model."
            )
        searching = [_searching(spec, settings) for spec in specs]
        pairs = coverage.readable(compute, searching, corpus.pairs, report)
        setups = [setup.narrowed(pairs, coverage.LEFT_OUT) for setup in corpus.setups]
        if not setups[0].queries:
            raise UserError("No query remains: each has an excluded pair.")
        excluded = (
            f"{len(corpus.pairs) - len(pairs):,} of {len(corpus.pairs):,} pairs excluded, because "
            f"{' or '.join(names)} can't read them in full."
        )
        return replace(corpus, setups=tuple(setups), pairs=tuple(pairs), excluded=excluded)

    def notes(self, data: DataSet, corpus: RankingTask) -> list[str]:
        """How much is searched and measured, and what is excluded."""
        setup = corpus.setups[-1 if corpus.table == "pools" else 0]  # the last pool is the corpus
        n, measured = len(setup.collection.queries), len(setup.queries)
        documents = counted(setup.collection.survey.n, "document")
        size = f"{counted(n, 'query')} and {documents} of {data.title}"
        if measured < n:
            size += f", measured over {counted(measured, 'query')}: {setup.selection}"
        sentences = [f"{size}.", *filter(None, [corpus.excluded])]
        if (groups := setup.collection.groups) is not None:
            sentences.append(f"{groups.title}: groups of queries by {groups.by}.")
        notes = (note for setup in corpus.setups for note in setup.collection.notes)
        return [*sentences, *dict.fromkeys(notes)]

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: RankingTask, settings: Settings
    ) -> list[Asked[RankingSetup]]:
        """One subject for each collection; none for a table that needs no model.

        Raises:
            UserError: a cross-encoder has no first stage.
        """
        if corpus.table == "evidence":
            return []
        subjects = []
        for setup in corpus.setups:
            searching = spec
            if setup.collection.name != corpus.dataset:
                searching = with_corpus(spec, setup.collection.name)
            searching = _searching(searching, settings)
            service.method_for(compute, searching, setup)
            subjects.append(Asked(searching, setup, settings))
        return subjects

    def without_models(self, corpus: RankingTask) -> list[Any]:
        """The measured runs, or the positions of the evidence.

        Raises:
            UserError: a run cannot be measured, or the data set has no evidence positions.
        """
        if corpus.table == "evidence":
            return [EvidencePositions(corpus.setups[0].collection)]
        return [ranked_run(run, corpus.setups[0]) for run in corpus.runs]

    def job(self, compute: Compute, subject: Asked[RankingSetup]) -> Job:
        return service.job(compute, subject.spec, subject.corpus)

    def summarize(self, compute: Compute, subject: Asked[RankingSetup]) -> Measured | None:
        return service.ranked(compute, subject.spec, subject.corpus)

    def together(self, summaries: Sequence[Any]) -> list[Any]:
        """The rankings, collection by collection."""
        order = list(dict.fromkeys(summary.collection.digest for summary in summaries))
        return sorted(summaries, key=lambda summary: order.index(summary.collection.digest))

    def measured(self, summary: Any) -> MeasuredModel | None:
        """nDCG@10 by query."""
        return summary.by_item if isinstance(summary, Measured) else None

    def differences(self, summaries: Sequence[Any]) -> list[DifferenceRow]:
        """The differences between rankings of the first collection."""
        first = summaries[0].collection.digest
        of_first = [summary for summary in summaries if summary.collection.digest == first]
        return super().differences(of_first)

    def tables_of(self, summaries: Sequence[Any]) -> Mapping[str, Table[Any]]:
        """The tables without those that need other data, other models or several languages."""
        collection = summaries[0].collection
        hidden = {"pools", "agreement"}
        if collection.groups is None:
            hidden.update(BY_GROUP)
        if len(collection.languages) < 2:
            hidden.add("languages")
        if len(summaries) != 2:
            hidden.add("query_differences")
        if not any(query.evidence is not None for query in collection.queries):
            hidden.add("evidence")
        return {name: table for name, table in self.all_tables.items() if name not in hidden}

    def remarks(self, summaries: Sequence[Any]) -> list[str]:
        """Which parts of runs are ignored, and how many measures depend on the order of the
        corpus."""
        runs = (summary for summary in summaries if isinstance(summary, RankedRun))
        remarks = [note for run in runs for note in run.notes]
        for ranked in (summary for summary in summaries if isinstance(summary, Ranked)):
            queries = ranked.setup.queries
            n = sum(depends_on_order(ranked.by_query[query.query_id], query) for query in queries)
            if n:
                remarks.append(
                    f"{ranked.name}: for {n:,} of {counted(len(queries), 'query')}, a relevant "
                    "document has the same score as a less relevant one. The document that comes "
                    "first in the corpus ranks higher; in another order, the measures would differ."
                )
        return remarks

    def verdict(self, summary: Any) -> str:
        """nDCG@10, and PSI with its value under permutation."""
        if isinstance(summary, EvidencePositions):
            n = sum(query.evidence is not None for query in summary.collection.queries)
            return f"{n:,} queries of {summary.collection.title} have evidence positions."
        evaluation, groups = summary.evaluation, summary.by_group
        profile = evaluation.profile if groups is None else groups.profile
        queries = counted(evaluation.n, "query")
        # One of several pools, or a sample.
        drawn = summary.setup.collection.drawn
        among = f" ({drawn})" if drawn else ""
        missing = f", {evaluation.n_missing:,} without a result" if evaluation.n_missing else ""
        ndcg = f"{summary.name}: nDCG@10 {evaluation.estimates[NDCG]}, {queries}{among}{missing}"
        if profile is None:
            return f"{ndcg}."
        psi, permuted, p = profile.psi, profile.psi_under_permutation, profile.p
        if psi is None or permuted is None or p is None:
            return f"{ndcg}."
        over = "" if groups is None else " over groups of evidence positions"
        return (
            f"{ndcg}. The position sensitivity index (PSI){over} is {psi:.3f}, against a mean of "
            f"{permuted:.3f} when evidence positions are permuted across queries (p = {p:.2g}). "
            + service.psi_verdict(permuted, p, profile.n)
        )

    def provenance(self, summary: Any) -> Provenance:
        provenance: Provenance = summary.provenance()
        return provenance

    def provenances(self, summaries: Sequence[Any], shown: str = "") -> list[Provenance]:
        """As in `Study`; the positions of the evidence have that of the data set, as without
        models."""
        if shown in ("evidence", EVIDENCE_FIGURE):
            return [EvidencePositions(summaries[0].collection).provenance()]
        return super().provenances(summaries, shown)


def _setup(data: DataSet, settings: Settings) -> RankingSetup:
    collection = collection_of(data)
    if settings.monolingual:
        collection = monolingual(collection)
    if settings.group_queries:
        collection = collection.sampled(settings.group_queries, settings.seed)
    first = _searching(with_corpus(resolve.resolve(settings.first_stage), data.name), settings)
    own_corpus = settings.own_corpus or settings.monolingual
    return RankingSetup(collection, own_corpus, first)


def _searching(spec: RetrieverSpec, settings: Settings) -> RetrieverSpec:
    """The retriever with PosIR's prompt and lengths if the settings ask for them."""
    return posir_ranking_spec(spec) if settings.posir else spec


RANKING = register(RankingStudy())
