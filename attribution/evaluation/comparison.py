"""Paired comparisons, with a verdict: higher, lower, equivalent within a margin, or too few
documents to decide.

A difference is taken query by query (or document by document), so that what makes a query hard
cancels. It is higher or lower if p, from Student's t over documents, is below 0.05 after Holm's
adjustment over all comparisons that are shown together. It is equivalent if both ends of its 90%
interval are within the margin: two one-sided tests (Schuirmann 1987).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import scipy  # loads scipy.special at its first use
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.bootstrap import (
    MIN_DOCUMENTS,
    Estimate,
    Kind,
    Statistic,
    Values,
    estimate,
    interval,
    numbered,
    p_value,
    standard_error,
)
from poslens.attribution.evaluation.comparison_words import p_in_words
from poslens.attribution.evaluation.rare_differences import Unseen
from poslens.attribution.evaluation.sample_size import (
    LEVEL,
    documents_to_decide,
    documents_to_rule_out,
    exceeded_with,
)
from poslens.attribution.types import ROUNDING

Compared = TypeVar("Compared")
Verdict = Literal["higher", "lower", "equivalent", "too few documents"]

SCORE_MARGIN = 0.005
"""Difference of two scores or cosines, in units of the score, up to which they are equivalent."""

DEVIATIONS_MARGIN = 0.05
"""Difference of two models' score differences up to which they are equivalent, each in standard
deviations of the model's scores: models have different scales."""

SHARE_MARGIN = 0.02
"""Difference of two shares up to which they are equivalent."""

INDEX_MARGIN = 0.05
"""Difference of two primacy-recency indices, which range from -1 to 1, up to which they are
equivalent."""

TEST = (
    "95% bootstrap intervals over documents; where all documents have the same value, by formula "
    "(Agresti-Coull; Clopper-Pearson for differences). Two-sided p: Student's t with the "
    "jackknife's standard error over documents, Holm-adjusted over all comparisons shown. Verdicts "
    "use p, so a model can be neither higher nor lower although the interval excludes 0, or the "
    "reverse. Equivalent: the 90% interval of the difference is within the measure's margin (two "
    "one-sided tests)"
)
"""The description of comparisons in captions."""

TEST_BY_ERROR = (
    "95% intervals and two-sided p: Student's t with the (jackknife) standard error over "
    "documents; p is Holm-adjusted over all comparisons shown. Equivalent: the 90% interval is "
    "within the margin (two one-sided tests)"
)
"""The same for comparisons by a standard error (`by_standard_error`, `paired_by_document`)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A paired difference and its verdict.

    `margin` is the difference, in the same unit, up to which two values are equivalent. `narrow` is
    the 90% interval, None if `difference` has none. `p` is two-sided, and `p_holm` is p adjusted
    for all comparisons that are shown together (`adjusted`); both are None if `difference` has no
    interval. `error` is the standard error; None if it is undefined, or if the comparison is
    decided alone. `rare` is the number of documents that would rule out rare differences, where
    nothing else is missing, and `rare_above` that for those above the margin. `n_compared` is the
    number of comparisons that `p_holm` is adjusted for, and `factor` the number by which Holm
    multiplies p. `by_error` states that intervals and p are from a standard error
    (`by_standard_error`), not from a bootstrap.
    """

    difference: Estimate
    margin: float
    narrow: tuple[float, float] | None
    p: float | None
    p_holm: float | None
    error: float | None = None
    rare: int | None = None
    rare_above: int | None = None
    n_compared: int = 1
    factor: int = 1
    by_error: bool = False

    @property
    def verdict(self) -> Verdict:
        """Higher and lower take precedence over equivalent: a small difference can be
        significant."""
        return _verdict(self.difference, self.margin, self.narrow, self.p_holm)

    @property
    def needed(self) -> int | None:
        """About how many documents would decide, with a probability of 80% or more, if the
        difference, its spread and the other comparisons stay the same; None once it is decided, or
        if the spread is unknown."""
        if self.verdict != "too few documents":
            return None
        if self.rare is not None:
            return self.rare
        error, n, factor = self.error, self.difference.n_resampled, float(self.factor)
        if self.p and self.p_holm:
            factor = max(factor, self.p_holm / self.p)
            if error is None and self.p < 1:
                error = abs(self.difference.value / scipy.special.stdtrit(n - 1, self.p / 2))
        return documents_to_decide(self.difference.value, self.margin, error, n, factor)

    def rules_out(self, side: Literal["higher", "lower"]) -> bool:
        """Whether a difference beyond the margin on one side is ruled out: a one-sided test at 5%,
        as the 90% interval ends before the margin."""
        if self.narrow is None:
            return False
        low, high = self.narrow
        return high <= self.margin if side == "higher" else low >= -self.margin

    @property
    def needed_one_sided(self) -> int | None:
        """About how many documents would decide, as `needed`, if ruling out a difference above the
        margin also decides."""
        if self.verdict != "too few documents" or self.rules_out("higher"):
            return None
        n, rare = self.difference.n_resampled, self.rare_above or MIN_DOCUMENTS
        seen = documents_to_rule_out(self.difference.value, self.margin, self.error, n)
        counts = [self.needed, None if seen is None else max(n + 1, seen, rare)]
        return min((count for count in counts if count is not None), default=None)

    def text(self, form: str = "+.3f", scale: float = 1.0, unit: str = "") -> str:
        """The difference, times `scale`, with its interval and unit, and the decision."""
        return f"{self.difference.times(scale).text(form)}{unit}, {self.decision}"

    @property
    def decision(self) -> str:
        """The verdict, and about how many documents would decide."""
        few = self.verdict == "too few documents"
        words = f"too few {self.difference.resampled}" if few else self.verdict
        return words + ("" if self.needed is None else f", about {self.needed:,} needed")

    @property
    def sentence(self) -> str:
        """The verdict in words, with the margin and the reason."""
        return self.in_words()

    def in_words(self, scale: float = 1.0, unit: str = "", *, one_sided: bool = False) -> str:
        """The same with the margin times `scale` and its unit, and with `needed_one_sided` instead
        of `needed` if `one_sided`."""
        needed = self.needed_one_sided if one_sided else self.needed
        verdict, margin = self.verdict, f"the margin of {scale * self.margin:g}{unit}"
        if verdict == "equivalent":
            return f"Equivalent: the 90% interval is within {margin}."
        interval, units = self.difference.interval, self.difference.resampled
        if verdict == "too few documents":
            if interval is None:
                if self.difference.n_resampled >= MIN_DOCUMENTS:
                    why = (
                        "a few of them have most of the items"
                        if self.difference.value
                        else "none of them differs, but rare differences are possible"
                    )
                    return f"Too few {units} to decide: {why}."
                more = (needed or 0) > MIN_DOCUMENTS
                verdict_needs = f", a verdict about {needed:,}" if more else ""
                return (
                    f"Too few {units} to decide: an interval needs {MIN_DOCUMENTS}{verdict_needs}."
                )
            would = f"; about {needed:,} {units} would be needed" if needed else ""
            if interval[0] > 0 or interval[1] < 0:  # would contradict the verdict without p
                return f"Not significant ({p_in_words(self)}): too few {units} to decide{would}."
            return f"Too few {units} to decide{would}."
        low, high = interval or (0.0, 0.0)
        small = f", by less than {margin}" if max(-low, high) <= self.margin else ""
        # Both are approximations, which differ for skewed differences.
        wide = ", by Student's t; the bootstrap interval includes 0" if low <= 0 <= high else ""
        return f"{verdict.capitalize()}{small} ({p_in_words(self)}{wide})."

    @property
    def clause(self) -> str:
        """The sentence without its capital and full stop, to end another sentence."""
        return f"{self.sentence[0].lower()}{self.sentence[1:].removesuffix('.')}"


def compared(
    rows: NDArray[np.floating],
    groups: Sequence[Hashable] | None,
    margin: float,
    statistic: Statistic = lambda means: means[:, 0],
    *,
    counts: Values | None = None,
    kind: Kind = "bca",
    largest: float | None = None,
    resampled: str = "documents",
) -> Comparison | None:
    """Compare by a statistic of the mean of rows [n, K] that is 0 if nothing differs, such as the
    mean of paired differences [n, 1]. `groups` are the documents of the rows, or what `resampled`
    names; `counts` are as in `intervals`, and `kind` is the kind of these. None if the statistic is
    undefined.

    `largest` is the largest possible difference of a document, for measures of events or ranks,
    which stay equal in most documents. Resampling cannot draw documents that were not seen, so the
    90% interval is extended in each direction in which fewer than FEW documents differ by more than
    the margin (`Unseen`). If no document differs, that is also the 95% interval.
    """
    values = np.asarray(rows, dtype=np.float64)
    difference = estimate(values, groups, statistic, counts=counts, resampled=resampled, kind=kind)
    if difference is None:
        return None
    narrow = interval(values, groups, statistic, counts=counts, kind=kind, level=0.9)
    p = p_value(values, groups, statistic, counts=counts, kind=kind)
    draft = comparison_of(values, groups, margin, statistic, difference, narrow, p, largest)
    if draft.error is None or kind == "bca" or narrow is None:
        return draft
    # The jackknife doesn't estimate the error of a statistic that is not smooth.
    return replace(draft, error=(narrow[1] - narrow[0]) / 2 / exceeded_with(LEVEL))


def comparison_of(
    values: Values,
    groups: Sequence[Hashable] | None,
    margin: float,
    statistic: Statistic,
    difference: Estimate,
    narrow: tuple[float, float] | None,
    p: float | None,
    largest: float | None,
) -> Comparison:
    """The comparison with this difference, 90% interval and p of a statistic, after differences
    that may be too rare to be seen are taken into account; `largest` as in `compared`."""
    error = rare = rare_above = None
    if largest is None:
        unseen = None
    else:
        unseen = Unseen.of(values, groups, statistic, difference.value, margin, largest)
    resampled = _verdict(difference, margin, narrow, p)
    if unseen is not None and narrow is not None:
        n = difference.n_resampled
        low, high = unseen.ends(n, LEVEL)
        if narrow == (0, 0):
            lowest, highest = unseen.ends(n, LEVEL / 2)
            difference = replace(difference, low=lowest, high=highest, formula="Clopper-Pearson")
        narrow = (min(narrow[0], low), max(narrow[1], high))
    if _verdict(difference, margin, narrow, p) == "too few documents":
        none_differ = unseen is not None and unseen.none_differ
        if unseen is not None and (resampled == "equivalent" or none_differ):
            rare = unseen.needed(margin)
        rare_above = None if unseen is None else unseen.needed_above(margin)
        error = standard_error(values, groups, statistic)
    return Comparison(difference, margin, narrow, p, p, error, rare, rare_above)


def by_standard_error(
    difference: Estimate, error: float | None, degrees: float, margin: float
) -> Comparison:
    """Compare by a difference and its standard error: intervals and p are those of Student's t with
    these degrees of freedom. For statistics that resampling cannot be used for."""
    value = difference.value
    narrow = p = None
    if error is not None and difference.interval is not None:
        reach = float(scipy.special.stdtrit(degrees, 1 - LEVEL)) * error
        narrow = (value - reach, value + reach)
        p = (
            float(2 * scipy.special.stdtr(degrees, -abs(value) / error))
            if error
            else float(value == 0)
        )
    return Comparison(difference, margin, narrow, p, p, error, by_error=True)


def paired(
    before: ArrayLike,
    after: ArrayLike,
    groups: Sequence[Hashable] | None,
    margin: float,
    largest: float | None = None,
) -> Comparison | None:
    """The mean of after minus before [n]; `largest` as in `compared`. None without rows."""
    difference = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    return compared(difference[:, None], groups, margin, largest=largest)


def document_means(values: ArrayLike, groups: Sequence[Hashable]) -> NDArray[np.float64]:
    """The mean [G] of the values [n] of each group, in the order of their first values."""
    array, index = np.asarray(values, dtype=np.float64), numbered(groups)
    return np.bincount(index, array) / np.bincount(index) if len(array) else array


def paired_by_document(
    before: ArrayLike, after: ArrayLike, groups: Sequence[Hashable], margin: float
) -> Comparison | None:
    """The paired t-test of after minus before [n], averaged by document first, so that every
    document counts once. Fewer than MIN_DOCUMENTS that all differ by the same amount, such as 0,
    have no spread to judge by, and no interval. None without rows."""
    old, new = (np.asarray(side, dtype=np.float64) for side in (before, after))
    if not len(old):
        return None
    means = document_means(new - old, groups)
    n, value = len(means), float(means.mean())
    # Differences that vary by rounding only are the same, and those of rounding alone are 0.
    rounding = ROUNDING * max(np.abs(old).max(), np.abs(new).max())
    same = np.ptp(means) <= rounding
    if same and abs(value) <= rounding:
        value = 0.0
    if n < (MIN_DOCUMENTS if same else 2):
        return by_standard_error(Estimate(value, n=len(old), n_resampled=n), None, 0, margin)
    error = 0.0 if same else float(means.std(ddof=1)) / math.sqrt(n)
    reach = float(scipy.special.stdtrit(n - 1, 1 - LEVEL / 2)) * error
    ends = value - reach, value + reach
    difference = Estimate(value, *ends, len(old), n, formula="t interval")
    return by_standard_error(difference, error, n - 1, margin)


def paired_statistics(
    before: NDArray[np.floating],
    after: NDArray[np.floating],
    groups: Sequence[Hashable] | None,
    margin: float,
    statistic: Statistic,
    *,
    counts: Values | None = None,
    kind: Kind = "bca",
    largest: float | None = None,
) -> Comparison | None:
    """A statistic of the mean of rows after [n, K] minus that of rows before [n, K], row by row of
    the same items; `counts` and `largest` as in `compared`. None without rows or where a statistic
    is not defined."""
    if not len(before):
        return None

    def difference(means: Values) -> Values:
        old, new = np.split(means, 2, axis=1)
        return np.asarray(statistic(new) - statistic(old))

    rows = np.concatenate([before, after], axis=1)
    return compared(rows, groups, margin, difference, counts=counts, kind=kind, largest=largest)


def estimate_of(comparison: Comparison | None) -> Estimate | None:
    """The difference of a comparison."""
    return None if comparison is None else comparison.difference


def judged(difference: Estimate | None, margin: float) -> Verdict:
    """The verdict of a difference of which only the 95% interval is known. Equivalence then
    requires that interval to be within the margin, which errs toward too few documents; but not for
    measures of events, whose interval can be too narrow (see `compared`)."""
    if difference is None or difference.interval is None:
        return "too few documents"
    low, high = difference.interval
    if low > 0 or high < 0:
        return "higher" if low > 0 else "lower"
    return "equivalent" if max(-low, high) <= margin else "too few documents"


def documents_needed(difference: Estimate, margin: float) -> int | None:
    """About how many documents would decide a difference of which only the 95% interval is known,
    as `Comparison.needed`; None if its spread is unknown."""
    if difference.interval is None:
        return None
    low, high = difference.interval
    return documents_to_decide(
        difference.value,
        margin,
        (high - low) / 2 / exceeded_with(LEVEL / 2),
        difference.n_resampled,
    )


def adjusted(comparisons: Sequence[Comparison | None]) -> list[Comparison | None]:
    """The comparisons with Holm's p over all of them that have a p."""
    with_p = [(i, c, c.p) for i, c in enumerate(comparisons) if c is not None and c.p is not None]
    values = [p for *_, p in with_p]
    factors = len(values) - np.argsort(np.argsort(values, kind="stable"))
    changed = list(comparisons)
    for (i, comparison, _), p_holm, factor in zip(
        with_p, holm(values).tolist(), factors.tolist(), strict=True
    ):
        changed[i] = replace(comparison, p_holm=p_holm, n_compared=len(values), factor=factor)
    return changed


def adjusted_fields(objects: Sequence[Compared], names: Sequence[str]) -> list[Compared]:
    """Dataclass objects whose fields `names` are comparisons, with those `adjusted` over all of the
    objects together; without `names`, the objects themselves with what they have cached."""
    if not names:
        return list(objects)
    comparisons = iter(adjusted([getattr(each, name) for each in objects for name in names]))
    return [
        replace(each, **{name: next(comparisons) for name in names})  # type: ignore[type-var]
        for each in objects
    ]


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p values [k] adjusted for k tests (Holm 1979, step down): the i-th smallest times k - i + 1,
    none smaller than one before it, at most 1."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _verdict(
    difference: Estimate, margin: float, narrow: tuple[float, float] | None, p: float | None
) -> Verdict:
    if difference.interval is None or narrow is None:
        return "too few documents"
    if p is not None and p < LEVEL:
        return "higher" if difference.value > 0 else "lower"
    return "equivalent" if max(-narrow[0], narrow[1]) <= margin else "too few documents"
