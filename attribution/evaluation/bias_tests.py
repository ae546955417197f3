"""Bias tests of Fayyaz et al. 2025, "Collapse of Dense Retrievers": does a retriever score document
d1 above document d2, over many pairs of documents for one query each?

Each is a paired t-test (scipy.stats.ttest_rel) of s(q, d1) - s(q, d2), with one mean difference for
each source document, because pairs built from one document are not independent. t > 0 always means
that d1 scores higher. The paper's tables of the foil and of moved evidence, and ColDeR's
leaderboard, report s(d2) - s(d1), so their t has the opposite sign.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # loads scipy.stats at its first use
from numpy.typing import NDArray

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import document_means, holm
from poslens.attribution.nouns import counted
from poslens.attribution.types import ROUNDING, TextPair, as_array

FEW = 10
"""With fewer documents, a result has a warning."""

TEST_NAME = "paired t-test (two-sided) of one mean difference for each document"
"""Name of the test in captions and exports."""

Side = Literal["d1", "d2"]


@dataclass(frozen=True, slots=True)
class BiasTest:
    """A test: what d1 and d2 are, and what t > 0 means. `mteb_prefers` is the document that mteb
    scores as correct: the one that answers the query or, if both do, the one that the named bias
    does not favor."""

    name: str
    title: str
    d1: str
    d2: str
    positive: str
    mteb_prefers: Side


TESTS: dict[str, BiasTest] = {
    test.name: test
    for test in (
        BiasTest(
            "answer_importance",
            "Answer importance",
            "leading sentence holds the entity and the answer",
            "leading sentence holds the entity only",
            "it sees the answer",
            "d1",
        ),
        BiasTest(
            "position",
            "Position",
            "evidence first",
            "evidence further down",
            "primacy",
            "d2",
        ),
        BiasTest(
            "literal",
            "Literal match",
            "the document names the entity as the query does",
            "the document gives it another name",
            "it prefers the exact match",
            "d2",
        ),
        BiasTest(
            "brevity",
            "Brevity",
            "evidence alone",
            "evidence, then the rest of the document",
            "it prefers short documents",
            "d2",
        ),
        BiasTest(
            "repetition",
            "Repetition",
            "evidence and two more sentences that name the entity",
            "evidence and two sentences that do not",
            "it prefers repetition",
            "d2",
        ),
        BiasTest(
            "foil",
            "Foil",
            "the entity's name twice, then a sentence with it but no answer",
            "the evidence between unrelated sentences",
            "it is fooled",
            "d2",
        ),
        BiasTest(
            "poison",
            "Poison",
            "the foil, then the evidence with a wrong answer",
            "the evidence between unrelated sentences",
            "it is fooled and misled",
            "d2",
        ),
        BiasTest(
            "necessity",
            "Span necessity",
            "the document",
            "the document without its evidence",
            "it needs the evidence",
            "d1",
        ),
    )
}
"""The paper's six tests and its poison test in its order, and the check of evidence spans in
PosIR's paper (arXiv 2601.08363)."""

COLDER_TESTS = tuple(TESTS)[:-1]
"""The tests that ColDeR's files have pairs for."""


@dataclass(frozen=True, slots=True)
class DocumentPair:
    """Two documents for one query: an item of a test.

    `first` is d1 and `second` d2, both with the query; `identical` pairs are excluded. `source`
    identifies the document that both were built from: pairs with the same one are not independent.
    """

    item_id: str
    first: TextPair
    second: TextPair
    source: str

    def __post_init__(self) -> None:
        if self.first.query != self.second.query:
            raise ValueError(f"{self.item_id}: two queries")

    @property
    def identical(self) -> bool:
        """Whether d1 and d2 have the same text."""
        return self.first.document == self.second.document


@dataclass(frozen=True, slots=True)
class PairScores:
    """s(q, d1) and s(q, d2) under one model, in units of the score. `truncated` is true if the
    model truncated either document. `read` is the share of the evidence's characters that the model
    read, the smaller of both documents' shares; 1 if no evidence is marked."""

    first: float
    second: float
    truncated: bool = False
    read: float = 1.0

    def __post_init__(self) -> None:
        as_array([self.first, self.second], (2,), "a score")
        if not 0 <= self.read <= 1 + ROUNDING:
            raise ValueError("a share outside 0 to 1")

    @property
    def difference(self) -> float:
        """s(q, d1) - s(q, d2); exactly 0 if they differ only by rounding."""
        if abs(self.first - self.second) <= ROUNDING * max(abs(self.first), abs(self.second)):
            return 0.0
        return self.first - self.second


@dataclass(frozen=True, slots=True)
class BiasResult:
    """One test of one model.

    `n` pairs from `n_documents` documents were tested, `n_truncated` of them with a truncated
    document. Excluded are `n_identical` pairs of identical documents and `n_unread` pairs in which
    the model truncates the evidence in one of the documents; `lost` is the mean s(d1) - s(d2)
    of the latter. `difference` is the mean over documents of s(d1) - s(d2) with its 95% t interval
    [`low`, `high`]. `effect_size` is d_z, the mean divided by the standard deviation of the
    differences. `share_first` is the share of pairs with s(d1) > s(d2), `share_second` that with
    s(d2) > s(d1); ties count in neither. Undefined values are None, and `remarks` explain why.
    """

    test: str
    n: int
    n_documents: int
    n_identical: int
    n_truncated: int
    mean_first: float | None
    mean_second: float | None
    difference: float | None
    low: float | None
    high: float | None
    t: float | None
    p: float | None
    effect_size: float | None
    share_first: float | None
    share_second: float | None
    n_unread: int = 0
    lost: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def resistance(self) -> float | None:
        """Share of pairs in which the document that mteb prefers scores higher: the accuracy of
        mteb's ColDeRReranking, except that a tie does not count."""
        return self.share_first if TESTS[self.test].mteb_prefers == "d1" else self.share_second

    @property
    def t_interval(self) -> tuple[float, float] | None:
        """`low` and `high` in standard errors: the interval of t, which includes 0 if p > 5%."""
        if self.t is None or self.low is None or self.high is None or not self.difference:
            return None
        error = self.difference / self.t
        return self.low / error, self.high / error


def paired_test(
    test: str,
    scores: Sequence[PairScores],
    n_identical: int = 0,
    groups: Sequence[Hashable] | None = None,
) -> BiasResult:
    """The paired t-test on s(d1) - s(d2) over `scores`, without pairs of identical documents.
    `groups` are the pairs' source documents; without them each pair is independent.

    Raises:
        UserError: every pair has identical documents.
    """
    if not scores and n_identical:
        raise UserError(
            f"{TESTS[test].title}: both documents of every pair are identical; use pairs of "
            "different documents."
        )
    pair_groups = range(len(scores)) if groups is None else groups
    unread = [score.difference for score in scores if score.read < 1]
    lost = float(np.mean(unread)) if unread else None
    readable = [
        (pair_scores, group)
        for pair_scores, group in zip(scores, pair_groups, strict=True)
        if pair_scores.read >= 1
    ]
    scores = [scores for scores, _ in readable]
    remarks = []
    if n_identical:
        remarks.append(f"{counted(n_identical, 'pair')} with identical documents excluded.")
    n, n_truncated = len(scores), sum(pair.truncated for pair in scores)
    if lost is not None:
        remarks.append(
            f"{counted(len(unread), 'pair')} excluded because the model truncates the evidence in "
            f"one of the documents. Their mean difference, {lost:+z.4f}, is not a bias."
        )
    if n_truncated:
        remarks.append(
            f"In {n_truncated:,} of {counted(n, 'pair')}, a document exceeds the context limit: "
            "the model does not read the rest."
        )
    each = np.array([pair.difference for pair in scores])
    sources = [group for _, group in readable]
    documents = len(set(sources))
    if documents < 2:
        remarks.append(f"{counted(documents, 'document')}: a paired t-test needs at least 2.")
    elif documents < FEW:
        remarks.append(
            f"Only {documents} documents: the interval is wide and t is not robust below {FEW}."
        )
    first = document_means([pair.first for pair in scores], sources)
    second = document_means([pair.second for pair in scores], sources)
    differences = document_means(each, sources)
    mean = float(differences.mean()) if n else None
    low = high = t = p = effect = None
    if documents >= 2 and mean is not None:
        if _flat(differences, first, second):
            low = high = mean
            remarks.append(
                "d1 and d2 score the same in every pair: the model ignores the difference."
                if mean == 0
                else f"Every pair differs by {mean:+z.4g}: without variance, t is undefined."
            )
        else:
            t_test = scipy.stats.ttest_rel(first, second)
            interval = t_test.confidence_interval(0.95)
            t, p = float(t_test.statistic), float(t_test.pvalue)
            low, high = float(interval.low), float(interval.high)
            mean = float((first - second).mean())
            effect = mean / float((first - second).std(ddof=1))
    return BiasResult(
        test=test,
        n=n,
        n_documents=documents,
        n_identical=n_identical,
        n_truncated=n_truncated,
        mean_first=float(first.mean()) if n else None,
        mean_second=float(second.mean()) if n else None,
        difference=mean,
        low=low,
        high=high,
        t=t,
        p=p,
        effect_size=effect,
        share_first=float((each > 0).mean()) if n else None,
        share_second=float((each < 0).mean()) if n else None,
        n_unread=len(unread),
        lost=lost,
        remarks=tuple(remarks),
    )


def _flat(
    differences: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]
) -> bool:
    """Whether the differences vary only by rounding, which would determine t."""
    scale = float(np.abs(np.concatenate([first, second])).max())
    return bool(not differences.any() or np.ptp(differences) <= ROUNDING * scale)


def adjusted(results: Sequence[BiasResult]) -> list[float | None]:
    """Holm-adjusted p of each of `results`, over those that have a p."""
    tested = {i: result.p for i, result in enumerate(results) if result.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())).tolist(), strict=True))
    return [corrected.get(i) for i in range(len(results))]
