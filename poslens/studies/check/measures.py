"""The comparisons that `check` makes between a model and a stored passport."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.evaluation.comparison import Comparison, paired
from poslens.attribution.evaluation.comparison_words import POINTS
from poslens.attribution.evaluation.sizes import paired_sizes
from poslens.attribution.nouns import counted, plural
from poslens.attribution.retrievers import limits
from poslens.attribution.types import ROUNDING
from poslens.studies.check.answers import Outcome
from poslens.studies.check.baseline import Baseline, BaselineNumber
from poslens.studies.passport.service import ModelPassport

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: the model's `value` and that of the `baseline`, over the same `n` pairs,
    queries or documents of `n_documents` documents; None if unknown. `difference` is how much
    worse the model is, and `comparison` the same with its interval and verdict (higher is
    worse), None if no documents are resampled. `line` is the check as a sentence."""

    name: str
    outcome: Outcome
    line: str
    value: float | None = None
    baseline: float | None = None
    n: int | None = None
    n_documents: int | None = None
    difference: float | None = None
    comparison: Comparison | None = None
    tolerance: float | None = None


# -- measures with documents to resample -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairedMeasure:
    """A number of a passport that is compared item by item. `part` and `key` locate it in the
    passport; `part` is also the name of the check. `words` is a template for value and baseline,
    `change` names the loss, and `worse` compares (before, now, documents, tolerance, `largest` of
    `compared`): higher is worse. With `in_scores`, values are in units of each model's scores. A
    `share` is a fraction that sentences state in percent."""

    part: str
    key: str
    title: str
    unit: str
    words: str
    change: str
    worse: Callable[[Scores, Scores, list[Hashable], float, float | None], Comparison | None]
    in_scores: bool = False
    share: bool = False

    @property
    def scale(self) -> tuple[float, str, str]:
        """What sentences multiply differences by, the format of the product, and its unit."""
        return (100.0, "+.1f", POINTS) if self.share else (1.0, "+.3f", "")

    @property
    def units(self) -> str:
        """What the items are, in the plural."""
        return plural(self.unit)

    def comparable(self, baseline: Baseline) -> bool:
        number = baseline.numbers.get(self.part, {}).get(self.key)
        return number is not None and bool(number.items)

    def make(self, passport: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
        number = baseline.numbers.get(self.part, {}).get(self.key)
        if number is None:
            return _absent(self.part, f"The baseline has no {self.title}.", baseline, self.part)
        if not number.items:
            line = (
                f"The baseline does not list the {self.units} of its {self.title}: write it again "
                "with this version of PosLens."
            )
            return Check(self.part, "not checked", line, baseline=number.value)
        now = passport.number(self.part, self.key)
        if now is None or now.measure is None:
            return _lost(self.part, self.title, passport, baseline, self.part, number)
        measure = now.measure
        # Items with the same texts in both passports.
        both = [item for item in measure.rows if item in number.items]
        if not both:
            line = (
                f"None of the baseline's {self.units} exists here with the same texts and corpus."
            )
            return Check(self.part, "not checked", line, baseline=number.value)
        before = np.array([number.items[item] for item in both])
        after = np.array([measure.rows[item][0] for item in both])
        if self.in_scores:
            # In standard deviations of the model's scores of the pairs that both scored, so that
            # values do not depend on the model's scale.
            _, old, new = _same_pairs(passport, baseline)
            before, after = before / _spread(old), after / _spread(new)
        # Rounding, as by another batch size, is no effect, however consistent it is.
        before = np.where(np.isclose(before, after, rtol=ROUNDING, atol=ROUNDING), after, before)
        documents = [measure.documents[item] for item in both]
        # With the same weights, documents are equal by construction and not by chance.
        same = passport.model.weights == baseline.weights
        largest = None if same else measure.largest_change
        comparison = self.worse(before, after, documents, tolerance, largest)
        assert comparison is not None  # there are items, and means are defined
        value, old_value = float(after.mean()), float(before.mean())
        difference = comparison.difference
        return Check(
            self.part,
            "not checked",
            self._line(
                value, old_value, comparison, len(number.items) - len(both), now.with_evidence
            ),
            value,
            old_value,
            difference.n,
            difference.n_resampled,
            difference.value,
            comparison,
            comparison.margin,
        )

    def _line(
        self, value: float, before: float, comparison: Comparison, n_gone: int, with_evidence: bool
    ) -> str:
        """The check as a sentence; `n_gone` of the baseline's items are missing now.
        `with_evidence` is as in the model's number."""
        difference = comparison.difference
        documents = (
            "" if self.unit == "document" else f" of {counted(difference.n_resampled, 'document')}"
        )
        part = " with evidence," if with_evidence else ""
        better = " (below 0 is better)" if difference.value < 0 else ""
        factor, form, unit = self.scale
        line = (
            f"{self.words.format(value=value, before=before)} over "
            f"{counted(difference.n, self.unit)}{part}{documents}. {self.change} is "
            f"{difference.times(factor).text(form)}{unit}{better}; the tolerance is "
            f"{factor * comparison.margin:g}{unit}."
        )
        if n_gone:
            line += (
                f" {n_gone:,} of the baseline's {self.units} don't exist here with the same texts "
                "and corpus."
            )
        return line


# -- measures of the model alone -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TruncationMeasure:
    """The number of tokens of a long text that are read; a higher number passes."""

    part = "audit"

    def comparable(self, baseline: Baseline) -> bool:
        return any(key in baseline.numbers.get(self.part, {}) for key in _TOKENS_READ)

    def make(self, passport: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
        stored = baseline.numbers.get(self.part, {})
        number = next((stored[key] for key in _TOKENS_READ if key in stored), None)
        if number is None:
            line = "The baseline doesn't say how many tokens the model reads."
            return _absent("truncation", line, baseline, self.part)
        limit, whole = (passport.number(self.part, key) for key in _TOKENS_READ)
        now = limit or whole
        if now is None and any(each.key == self.part and each.numbers for each in passport.parts):
            line = "The audit found no truncation point, so the model reads whole texts."
            return Check("truncation", "pass", line, baseline=number.value)
        if now is None:
            return _lost("truncation", "truncation point", passport, baseline, self.part, number)
        tokens, before = now.estimate.value, f"{number.value:,.0f}"
        unit = limits.unit(passport.model.spec)
        if limit is None and tokens < number.value:
            line = (
                f"{passport.name} reads the longest text tried, of {tokens:,.0f} {unit}, to the "
                f"end: whether it still reads {before} takes a longer text."
            )
            return Check("truncation", "not checked", line, tokens, number.value)
        fewer = max(number.value - tokens, 0.0)
        more = f"{tokens - number.value:,.0f} more" if tokens > number.value else "not fewer"
        line = (
            f"The model reads {tokens:,.0f} {unit} of a long text ({before} in the baseline): "
            f"{f'{fewer:,.0f} fewer' if fewer else more}; the tolerance is {tolerance:g}."
        )
        return _exact("truncation", line, tokens, number.value, now.estimate.n, fewer, tolerance)


_TOKENS_READ = ("tokens_read", "longest_text_read")
"""The keys of the two numbers of which an audit has one: where the model truncates, or how long the
texts are that it reads to the end."""


@dataclass(frozen=True, slots=True)
class DriftMeasure:
    """Mean absolute difference of the scores of the pairs whose texts are the same, in standard
    deviations of the baseline's scores."""

    part = "attribution"

    def comparable(self, baseline: Baseline) -> bool:
        return bool(baseline.scores)

    def make(self, passport: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
        part = part_of("drift", baseline)
        if not baseline.scores:
            return _absent("drift", "The baseline has no scores of pairs.", baseline, part)
        if not passport.scores:
            return _lost("drift", "score of a pair", passport, baseline, part, None)
        same, old, new = _same_pairs(passport, baseline)
        if not same:
            line = "None of the baseline's pairs exists here with the same texts."
            return Check("drift", "not checked", line)
        moved = np.abs(new - old) / _spread(old)
        mean, most = float(moved.mean()), int(moved.argmax())
        line = (
            f"The scores of {len(same):,} pairs changed by {mean:.4f} standard deviations of the "
            f"baseline's scores on average, and most for pair {same[most][:80]}, by "
            f"{moved[most]:.4f}; the tolerance is {tolerance:g}."
        )
        return _exact("drift", line, mean, 0.0, len(same), mean, tolerance)


def _same_pairs(passport: ModelPassport, baseline: Baseline) -> tuple[list[str], Scores, Scores]:
    """The pairs [n] whose texts are the same in both, and their scores [n] before and now."""
    same = [
        pair_id
        for pair_id, score in baseline.scores.items()
        if (now := passport.scores.get(pair_id)) is not None and now["texts"] == score["texts"]
    ]
    old = np.array([baseline.scores[pair_id]["score"] for pair_id in same])
    new = np.array([passport.scores[pair_id]["score"] for pair_id in same])
    return same, old, new


def _spread(scores: Scores) -> float:
    # Constant scores have no spread, so they are compared without scaling.
    return (float(scores.std()) if len(scores) else 0.0) or 1.0


def _exact(
    name: str,
    line: str,
    value: float,
    before: float,
    n: int,
    difference: float,
    tolerance: float,
) -> Check:
    # Ignore rounding errors of floating-point sums.
    outcome: Outcome = "pass" if difference <= tolerance + 1e-9 else "fail"
    return Check(name, outcome, line, value, before, n, None, difference, None, tolerance)


# -- every check -----------------------------------------------------------------------------------


def _absent(name: str, line: str, baseline: Baseline, part: str) -> Check:
    return Check(name, "not checked", " ".join(filter(None, (line, baseline.absent.get(part)))))


def _lost(
    name: str,
    what: str,
    passport: ModelPassport,
    baseline: Baseline,
    part: str,
    before: BaselineNumber | None,
) -> Check:
    old = before.value if before else None
    pairs = passport.scope.data.pairs
    if baseline.scores and not any(pairs.get(pair_id) for pair_id in baseline.scores):
        line = f"None of the baseline's pairs exists in {passport.dataset}."
        return Check(name, "not checked", line, baseline=old)
    if part in ("relocation", "position_effect") and len(passport.scope.moved) < 2:
        line = (
            f"{passport.dataset} has fewer than two pairs whose evidence can be moved, so it isn't "
            "the baseline's data set."
            if len(baseline.moved()) != 1
            else f"The baseline has the {what} of only one pair: write it again with a higher "
            "--moved."
        )
        return Check(name, "not checked", line, baseline=old)
    why = next((each.absent for each in passport.parts if each.key == part and each.absent), "")
    line = f"{passport.name} has no {what}, but the baseline does: {why or 'it is not defined.'}"
    return Check(name, "fail", line, baseline=old)


MEASURES: dict[str, PairedMeasure | TruncationMeasure | DriftMeasure] = {
    "relocation": PairedMeasure(
        "relocation",
        "last_minus_first",
        "last-minus-first difference by relocation",
        "pair",
        "Moving the evidence from the first to the last third changes the score by {value:+z.3f} "
        "standard deviations ({before:+z.3f} in the baseline)",
        "The increase of its size",
        paired_sizes,
        in_scores=True,
    ),
    "position_effect": PairedMeasure(
        "position_effect",
        "first_minus_last",
        "position effect on rank",
        "query",
        "nDCG@10 with the evidence first minus nDCG@10 with it last is {value:+z.3f} "
        "({before:+z.3f} in the baseline)",
        "The increase of its size",
        paired_sizes,
    ),
    "ranking": PairedMeasure(
        "ranking",
        "ndcg_at_10",
        "nDCG@10",
        "query",
        "nDCG@10 is {value:.3f} ({before:.3f} in the baseline)",
        "The loss",
        lambda before, now, *rest: paired(now, before, *rest),
    ),
    "audit": PairedMeasure(
        "audit",
        "unretrieved",
        "share of unretrieved sentences",
        "document",
        "The mean share of a document's sentences that don't retrieve it is {value:.1%} "
        "({before:.1%} in the baseline)",
        "The increase",
        paired,
        share=True,
    ),
    "misses": PairedMeasure(
        "misses",
        "missed",
        "share of missed documents",
        "pair",
        "The share of query-document pairs whose relevant document is not in the top 10 is "
        "{value:.1%} ({before:.1%} in the baseline)",
        "The increase",
        paired,
        share=True,
    ),
    "truncation": TruncationMeasure(),
    "drift": DriftMeasure(),
}

NAMES = tuple(MEASURES)


def part_of(name: str, baseline: Baseline) -> str:
    """The part of a passport that a check reads. Two parts have scores; relocation's are faster
    to compute."""
    if name == "drift" and "relocation" in baseline.numbers:
        return "relocation"
    return MEASURES[name].part
