"""Results of one model's bias tests, and their table rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.bias_pairs import BiasPairs
from poslens.attribution.evaluation.bias_tests import TESTS, BiasResult, PairScores
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.provenance import ModelIdentity
from poslens.rows import column


@dataclass(frozen=True)
class Asked:
    """The tests of one model, and the measure that bars show."""

    spec: RetrieverSpec
    tests: tuple[BiasPairs, ...]
    measure: str = "t"


@dataclass(frozen=True, slots=True)
class ScoredTest:
    """One model's result of one test, with its pairs and scores.

    `missing` counts the pairs without scores; `failed` has the reasons why pairs cannot be scored,
    by item. `adjusted_p` is adjusted (Holm) for all results shown together; None without a p value.
    """

    pairs: BiasPairs
    result: BiasResult
    scores: dict[str, PairScores]
    missing: int
    failed: dict[str, str]
    adjusted_p: float | None = None

    @property
    def name(self) -> str:
        """Name of the test, with its variant."""
        return ", ".join(filter(None, (self.pairs.test, self.pairs.variant)))

    @property
    def difference(self) -> Estimate | None:
        """The mean of s(d1) - s(d2) with its t interval."""
        result = self.result
        if result.difference is None:
            return None
        return Estimate(result.difference, result.low, result.high, n=result.n)


@dataclass(frozen=True)
class BiasSummary:
    """The tests of one model that have at least one scored pair."""

    model: ModelIdentity
    asked: Asked
    tests: tuple[ScoredTest, ...]

    def of(self, name: str) -> ScoredTest | None:
        """The test with this name (`ScoredTest.name`); None without one."""
        return next((test for test in self.tests if test.name == name), None)


VARIANT = (
    "The variant of the test, if `--vary` is given. Position: percent of the other sentences "
    "before the evidence. Literal: the name in the query and in d1. Repetition: added sentences of "
    "d1 that name the entity."
)


@dataclass(frozen=True)
class BiasRow:
    """A bias test of one model."""

    model: str = column("Name of the model.")
    test: str = column("Name of the test.")
    variant: str = column(VARIANT)
    n: int = column("Pairs of documents tested.")
    documents: int = column("Number of distinct documents.")
    t: float | None = column("Paired t statistic; null where it is not defined.", form=".2f")
    p: float | None = column("Its two-sided p value.", form=".2g")
    p_holm: float | None = column(
        "The same after Holm's correction over all rows.", title="p (Holm)", form=".2g"
    )
    mean_difference: Estimate | None = column(
        "Mean of s(d1) - s(d2), in the model's score, with its t interval.", form="+.4f"
    )
    d_z: float | None = column(
        "Mean difference in standard deviations of differences.", title="d_z", form=".2f"
    )
    d1_preferred: float | None = column("Share of pairs with s(d1) > s(d2), 0 to 1.", form=".0%")
    resistance: float | None = column(
        "Share of pairs in which the document that mteb prefers scores higher, 0 to 1.",
        title="resistance (mteb)",
        form=".0%",
    )
    mteb_prefers: str = column(
        "d1 or d2: the document with the answer, or the one that the bias does not favor."
    )
    mean_d1: float | None = column(
        "Mean score of the first documents.", title="mean s(d1)", form=".4f"
    )
    mean_d2: float | None = column(
        "Mean score of the second documents.", title="mean s(d2)", form=".4f"
    )
    identical: int = column("Number of pairs excluded because their documents are identical.")
    truncated: int = column("Number of pairs with a document longer than the context limit.")
    evidence_not_read_whole: int = column(
        "Number of pairs excluded because the model truncates the evidence.",
        title="evidence truncated",
    )
    mean_difference_there: float | None = column(
        "Mean of s(d1) - s(d2) over the pairs with truncated evidence.",
        title="mean difference, evidence truncated",
        form="+.4f",
    )
    failed: int = column("Number of failed pairs.")
    missing: int = column("Number of pairs that are not computed yet.")
    positive_t_means: str = column("What a positive t means.", title="t > 0 means")
    pairs: str = column("How the pairs were built.")
    remarks: str = column("Remarks on the row, such as why a number is undefined; can be empty.")


@dataclass(frozen=True)
class PairRow:
    """A scored pair of documents; rows are sorted by decreasing difference."""

    model: str = column("Name of the model.")
    test: str = column("Name of the test.")
    variant: str = column(VARIANT)
    difference: float = column("s(d1) - s(d2), in the model's score.", form=".4f")
    score_d1: float = column("Score of the first document.", title="s(d1)", form=".4f")
    score_d2: float = column("Score of the second document.", title="s(d2)", form=".4f")
    evidence_read: float | None = column(
        "Share of the evidence's characters that the model reads, 0 to 1, in the document where "
        "that share is smaller; null if the context limit is unknown.",
        form=".0%",
    )
    query: str = column("The query.")
    d1: str = column("The first document.")
    d2: str = column("The second document.")
    pair: str = column("Id of the pair.")


def test_rows(summary: BiasSummary) -> Iterator[BiasRow]:
    """One row for each test of a model."""
    for scored in summary.tests:
        result, test = scored.result, TESTS[scored.result.test]
        yield BiasRow(
            model=summary.model.spec.name,
            test=result.test,
            variant=scored.pairs.variant,
            n=result.n,
            documents=result.n_documents,
            t=result.t,
            p=result.p,
            p_holm=scored.adjusted_p,
            mean_difference=scored.difference,
            d_z=result.effect_size,
            d1_preferred=result.share_first,
            resistance=result.resistance,
            mteb_prefers=test.mteb_prefers,
            mean_d1=result.mean_first,
            mean_d2=result.mean_second,
            identical=result.n_identical,
            truncated=result.n_truncated,
            evidence_not_read_whole=result.n_unread,
            mean_difference_there=result.lost,
            failed=len(scored.failed),
            missing=scored.missing,
            positive_t_means=test.positive,
            pairs=scored.pairs.source,
            remarks=" ".join(result.remarks),
        )


def pair_rows(summary: BiasSummary) -> Iterator[PairRow]:
    """One row for each scored document pair of each test of a model."""
    unknown = limits.unknown(summary.model.spec)
    for test in summary.tests:
        rows = [
            PairRow(
                summary.model.spec.name,
                test.result.test,
                test.pairs.variant,
                scores.first - scores.second,
                scores.first,
                scores.second,
                None if unknown else scores.read,
                pair.first.query,
                pair.first.document,
                pair.second.document,
                pair.item_id,
            )
            for pair in test.pairs.pairs
            if (scores := test.scores.get(pair.item_id)) is not None
        ]
        yield from sorted(rows, key=lambda row: -row.difference)
