"""The declaration of the study `bias`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from poslens.attribution.datasets import SAMPLE_BIAS, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_pairs import (
    FROM_EVIDENCE,
    POSITIONS,
    VARIED,
    BiasPairs,
    available,
    lacking,
    pairs_for,
    unknown_files,
    variants,
    varied,
)
from poslens.attribution.evaluation.bias_tests import (
    TEST_NAME,
    TESTS,
    DocumentPair,
    PairScores,
    adjusted,
    paired_test,
)
from poslens.attribution.evaluation.comparison import DEVIATIONS_MARGIN
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.kinds import bias as bias_scores
from poslens.cache.kinds.bias import BIAS_SCORES
from poslens.cache.kinds.embeddings import recent_texts
from poslens.cache.storage.results import Stored
from poslens.compute import coverage
from poslens.compute.compute import Compute
from poslens.compute.coverage import Report
from poslens.compute.item_job import Batched, item_job
from poslens.compute.provenance import ModelIdentity, of_model
from poslens.compute.runs import Job
from poslens.paired import ItemMeasure, MeasuredModel, in_deviations
from poslens.parameters import Choice, Integer, Parameters, Settings, Several
from poslens.rows import Table
from poslens.studies.bias.tables import (
    MEASURES,
    BiasRow,
    BiasSubject,
    BiasSummary,
    PairRow,
    ScoredTest,
    bias_chart,
    pair_rows,
    test_rows,
)
from poslens.studies.selections import READABLE
from poslens.study import Asked, Figure, Study, register

UNREADABLE = "A model cannot read one of the two documents."
LEVEL = 0.05
"""The verdict reports a difference if the adjusted p value is below this."""


def distinct(pairs: BiasPairs) -> list[DocumentPair]:
    """The pairs whose documents differ; other pairs are counted but not scored."""
    return [pair for pair in pairs.pairs if not pair.identical]


def _items(tests: Sequence[BiasPairs]) -> list[DocumentPair]:
    return [pair for pairs in tests for pair in distinct(pairs)]


def _tested(pairs: BiasPairs, stored: Stored[PairScores]) -> ScoredTest:
    items = distinct(pairs)
    scores = {i.item_id: stored.results[i.item_id] for i in items if i.item_id in stored.results}
    failed = {i.item_id: stored.failed[i.item_id] for i in items if i.item_id in stored.failed}
    groups = [item.source for item in items if item.item_id in scores]
    result = paired_test(
        pairs.test, list(scores.values()), len(pairs.pairs) - len(items), groups=groups
    )
    return ScoredTest(pairs, result, scores, len(items) - len(scores) - len(failed), failed)


def _measure(test: ScoredTest) -> ItemMeasure:
    """s(d1) - s(d2) of each pair whose evidence is read in full, in standard deviations of the
    model's scores of these documents, because models have different scales."""
    read = {item: scores for item, scores in test.scores.items() if scores.read >= 1}
    groups = {pair.item_id: pair.source for pair in test.pairs.pairs if pair.item_id in read}
    both = [(scores.first, scores.second) for scores in read.values()]
    rows = in_deviations({item: scores.difference for item, scores in read.items()}, both)
    title = f"{test.pairs.title.lower()} (d1 − d2, standard deviations)"
    return ItemMeasure(title, "pairs", DEVIATIONS_MARGIN, rows, groups, by_document=True)


TEST_CHOICE = Several(
    option="--test",
    default=(),
    options=tuple(TESTS),
    closed=True,
    titles={name: test.title for name, test in TESTS.items()},
    help="Tests to run; by default, all for which the data set has pairs.",
)

UNVARIED = "none"
VARY = Choice(
    title="Variants of",
    default=UNVARIED,
    options=(UNVARIED, *VARIED),
    help="Replaces all tests by the variants of one test, as in the paper: position (evidence "
    "after 25 to 100% of the other sentences, figure 4), literal (short or long name in the query "
    "and in the document, table 3), repetition (m of n added sentences name the entity, figure 5; "
    "needs Re-DocRED's files).",
)


class BiasTests(Study[tuple[BiasPairs, ...], BiasSubject, BiasSummary]):
    """Compares the scores of many pairs of documents that differ in one respect, with the tests of
    Fayyaz et al. 2025."""

    name = "bias"
    title = "Bias tests"
    question = "Which of two documents does a model prefer, all else equal?"
    unit = "document pair"
    reads = (
        "Each bar compares the documents d1 and d2 of many pairs, which differ in one respect. "
        "Above zero, d1 scores higher."
    )
    limits = (
        "Paired t-test over documents, because pairs made from one document are not independent. "
        "d_z: mean of s(d1) − s(d2) over its standard deviation. Resistance (mteb): share of pairs "
        "in which the document that mteb counts as correct scores higher, which is d2 except in "
        "answer importance. A tie counts in neither share. p (Holm): adjusted for all tests of the "
        "table. Pairs whose evidence the model truncates in one of the documents are excluded; "
        "their mean difference has its own column. Two models are compared by s(d1) − s(d2) in "
        "standard deviations of each model's scores, by the same test. In the paper, t of the foil "
        "and of moved evidence has the opposite sign."
    )
    dataset = SAMPLE_BIAS
    compared = ("MiniLM-primacy", "MiniLM", "MiniLM-recency")
    parameters = Parameters(
        tests=TEST_CHOICE,
        position=Choice(
            title="Evidence moves to",
            default=POSITIONS[0],
            options=POSITIONS,
            help="Where the position test moves the evidence to, if it is built from evidence "
            "spans: end, middle (after half of the other sentences) or own (not moved).",
        ),
        vary=VARY,
        pairs=Integer(
            title="Pairs per test",
            default=250,
            low=2,
            high=100_000,
            step=50,
            help="Maximum number of pairs of each test, spread evenly over the data set.",
        ),
        readable=READABLE,
        measure=Choice(
            title="Bars show",
            default="t",
            options=tuple(MEASURES),
            help=f"What the figure shows: {', '.join(MEASURES)}.",
        ),
    )
    tables: ClassVar = {
        "tests": Table(BiasRow, test_rows),
        "pairs": Table(PairRow, pair_rows, "Pairs", on_page=False),
    }
    figures = (Figure("Bias tests by test and model", bias_chart),)

    def parameters_for(self, data: DataSet) -> Parameters:
        """Offers only tests for which the data set has pairs, and the evidence's new position only
        if all their pairs are built from evidence spans."""
        offered = available(data)
        tests = replace(TEST_CHOICE, options=offered, default=offered)
        built = any(lacking(data).values()) and set(offered) <= set(FROM_EVIDENCE)
        vary = replace(VARY, options=(UNVARIED, *varied(data)))
        parameters = {**self.parameters, "tests": tests, "vary": vary}
        if not built:
            del parameters["position"]
        return Parameters(**parameters)

    def corpus(self, data: DataSet, settings: Settings) -> tuple[BiasPairs, ...]:
        """The pairs of each test."""
        names = settings.tests or available(data)
        if not names:
            raise UserError(
                f"{data.title} has neither ColDeR's rows nor evidence spans, so there is no bias "
                "test for it: choose another data set."
            )
        if settings.vary == UNVARIED:
            tests = [pairs_for(data, name, settings.position, settings.pairs) for name in names]
        elif settings.tests and settings.vary not in settings.tests:
            raise UserError(
                f"The tests {', '.join(names)} do not include {settings.vary}, whose variants are "
                "selected: select that test too."
            )
        else:
            tests = variants(data, settings.vary, settings.pairs)
        if not any(distinct(pairs) for pairs in tests):
            paired_test(tests[0].test, [], len(tests[0].pairs))  # raises the reason
        return tuple(tests)

    def narrowed(
        self,
        compute: Compute,
        specs: Sequence[RetrieverSpec],
        corpus: tuple[BiasPairs, ...],
        settings: Settings,
        report: Report = lambda done, total: None,
    ) -> tuple[BiasPairs, ...]:
        """With the setting `readable`, only the pairs whose two documents every model can read.

        Raises:
            UserError: no pair remains.
        """
        if not settings.readable:
            return corpus
        documents = [
            document
            for test in corpus
            for pair in test.pairs
            for document in (pair.first, pair.second)
        ]
        readable = coverage.readable(compute, specs, documents, report)
        ids, tests = {document.pair_id for document in readable}, []
        for test in corpus:
            pairs = tuple(p for p in test.pairs if {p.first.pair_id, p.second.pair_id} <= ids)
            rejected = dict(test.rejected)
            if n := len(test.pairs) - len(pairs):
                rejected[UNREADABLE] = n
            source = f"{test.source}; {coverage.LEFT_OUT}"
            tests.append(replace(test, pairs=pairs, source=source, rejected=rejected))
        if not (left := tuple(test for test in tests if test.pairs)):
            raise UserError(
                "A model can't read one document of every pair. Choose another model or data set."
            )
        return left

    def notes(self, data: DataSet, corpus: tuple[BiasPairs, ...]) -> list[str]:
        rejected: dict[str, list[str]] = {}
        for pairs_of_test in corpus:
            reasons = pairs_of_test.rejected.items()
            left_out = " ".join(f"{counted(n, 'pair')} left out. {why}" for why, n in reasons)
            rejected.setdefault(left_out, []).append(pairs_of_test.title)
        sentences = [
            f"{', '.join(titles)}: {left_out}" for left_out, titles in rejected.items() if left_out
        ]
        sentences += [
            f"{pairs.title}: no two documents differ, so there is nothing to test."
            for pairs in corpus
            if not distinct(pairs)
        ]
        if {pairs_of_test.test for pairs_of_test in corpus} == set(available(data)):
            without: dict[str, list[str]] = {}
            for name, reason in lacking(data).items():
                without.setdefault(reason, []).append(TESTS[name].title.lower())
            sentences += [
                f"Not tested here: {', '.join(names)}, because {reason}."
                for reason, names in without.items()
                if reason
            ]
            if any(without) and data.name != SAMPLE_BIAS:
                sentences.append(f"The data set {SAMPLE_BIAS} has pairs for all tests.")
        if unknown := unknown_files(data):
            sentences.append(f"No test uses these files: {', '.join(unknown)}.")
        return sentences

    def subjects(
        self,
        compute: Compute,
        spec: RetrieverSpec,
        corpus: tuple[BiasPairs, ...],
        settings: Settings,
    ) -> list[BiasSubject]:
        """One subject with all tests that have pairs to score; none without such tests."""
        tests = tuple(pairs for pairs in corpus if distinct(pairs))
        return [Asked(spec, tests, settings)] if tests else []

    def job(self, compute: Compute, subject: BiasSubject) -> Job:
        """A job that scores the pairs that have no scores yet; progress counts pairs."""

        def worker(given: Compute, retriever: Retriever) -> Callable[[DocumentPair], PairScores]:
            cache = recent_texts(given.root, given.identify(subject.spec).key, retriever)

            def scores(pairs: Sequence[DocumentPair]) -> list[PairScores]:
                return bias_scores.score(retriever, pairs, cache)

            return Batched(scores)

        items = _items(subject.corpus)
        tests = "; ".join(f"{test.test} of {test.source}" for test in subject.corpus)
        return item_job(
            compute,
            subject.spec,
            BIAS_SCORES,
            items,
            bias_scores.store,
            worker,
            scope=f"{items[0].first.dataset}: {tests}" if items else tests,
            doing="bias tests",
            portion=bias_scores.ahead,
        )

    def summarize(self, compute: Compute, subject: BiasSubject) -> BiasSummary | None:
        """Each test with at least one scored pair, evaluated on the stored scores."""
        model = compute.identify(subject.spec)
        stored = bias_scores.store(compute.root).select(
            model.key, BIAS_SCORES, _items(subject.corpus)
        )
        tests = tuple(
            test
            for test in (_tested(pairs, stored) for pairs in subject.corpus)
            if test.scores or not test.missing
        )
        return BiasSummary(model, subject, tests) if tests else None

    def together(self, summaries: Sequence[BiasSummary]) -> list[BiasSummary]:
        p = iter(adjusted([test.result for summary in summaries for test in summary.tests]))
        return [
            replace(
                summary, tests=tuple(replace(test, adjusted_p=next(p)) for test in summary.tests)
            )
            for summary in summaries
        ]

    def measured(self, summary: BiasSummary) -> MeasuredModel:
        return MeasuredModel(summary.name, [_measure(test) for test in summary.tests])

    def remarks(self, summaries: Sequence[BiasSummary]) -> list[str]:
        """Caveats, each with the tests it applies to. Tests whose pairs are not all scored have
        none yet."""
        labels: dict[str, list[str]] = {}
        for summary in summaries:
            for test in summary.tests:
                if test.missing:
                    continue
                label = f"{summary.name}, {test.pairs.title.lower()}"
                for sentence in (*test.result.remarks, *dict.fromkeys(test.failed.values())):
                    labels.setdefault(sentence, []).append(label)
        sentences = [f"{'; '.join(of)}: {sentence}" for sentence, of in labels.items()]
        if any(test.missing for summary in summaries for test in summary.tests):
            sentences.append("Some tests are computed for only part of their pairs.")
        return sentences

    def verdict(self, summary: BiasSummary) -> str:
        higher: dict[str, list[str]] = {"d1": [], "d2": []}
        level: list[str] = []
        equal: list[str] = []
        untested: list[str] = []
        for test in summary.tests:
            name, p, difference = test.pairs.title.lower(), test.adjusted_p, test.difference
            if difference is None or (p is None and difference.value):
                untested.append(name)
            elif p is None:
                equal.append(name)
            elif p >= LEVEL:
                level.append(name)
            else:
                side = "d1" if difference.value > 0 else "d2"
                higher[side].append(f"{name} {difference.text('+.3f')}")
        parts = [f"{side} scores higher in {', '.join(of)}" for side, of in higher.items() if of]
        basis = f"significant: p < {LEVEL} after Holm's adjustment"
        if parts:
            basis += "; s(d1) − s(d2) with 95% interval"
        if level:
            parts.append(f"no significant difference in {', '.join(level)}")
        tested = [f"{'; '.join(parts)} ({basis})"] if parts else []
        # `remarks` explain both.
        if equal:
            tested.append(f"no difference in {', '.join(equal)}")
        if untested:
            tested.append(f"not tested: {', '.join(untested)}")
        return f"{summary.name}: {'; '.join(tested)}."

    def provenance(self, summary: BiasSummary) -> Provenance:
        return provenance_of(summary.model, summary.tests)


def provenance_of(model: ModelIdentity, tests: Sequence[ScoredTest]) -> Provenance:
    """Everything needed to reproduce these tests of one model. The number of pairs is the sum over
    the tests; a document that several tests use counts once."""
    documents = {
        pair.source
        for test in tests
        for pair in test.pairs.pairs
        if (scores := test.scores.get(pair.item_id)) is not None and scores.read >= 1
    }
    results = [test.result for test in tests]
    names = ", ".join(dict.fromkeys(TESTS[result.test].title.lower() for result in results))
    source = "; ".join(dict.fromkeys(test.pairs.source for test in tests))
    unread = sum(result.n_unread for result in results)
    left_out = f"; {unread:,} pairs left out, their evidence not read whole" if unread else ""
    return of_model(
        model,
        f"{TEST_NAME}, of {BIAS_SCORES!r}",
        tests[0].pairs.pairs[0].first.dataset,
        n_pairs=sum(result.n for result in results),
        n_documents=len(documents),
        truncated=sum(result.n_truncated for result in results),
        selection=f"tests {names}; {source}{left_out}",
    )


BIAS_STUDY = register(BiasTests())
