"""Compare a model's passport with a stored one, number by number. No Streamlit here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import cast

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.studies.check.answers import CheckAnswer, CheckEntry, Outcome
from poslens.studies.check.baseline import Baseline, BaselineNumber
from poslens.studies.passport import service as passports
from poslens.studies.passport.service import ModelPassport
from poslens.studies.passport.subject import MAX_PAIRS

_INDEX = "_primacy_recency_index"


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How much worse than the baseline each number may be before its check fails.

    `relocation` and `drift` in standard deviations of the scores of pairs, `curve` in units of the
    primacy-recency index, `psi` of PSI, `truncation` in tokens.
    """

    relocation: float = 0.05
    curve: float = 0.05
    psi: float = 0.05
    truncation: float = 0
    drift: float = 0.05

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
                raise UserError(f"The tolerance of {name} must be a number from 0.")


@dataclass(frozen=True, slots=True)
class Check:
    """One check: the model's `value` and that of the `baseline`, and how many pairs, queries or
    texts (`n`) of how many documents each is over; None where unknown. It fails where `excess` is
    above `tolerance`. `line` says all of it in words."""

    name: str
    outcome: Outcome
    line: str
    value: float | None = None
    n: int | None = None
    n_documents: int | None = None
    baseline: float | None = None
    baseline_n: int | None = None
    baseline_n_documents: int | None = None
    excess: float | None = None
    tolerance: float | None = None


def passport(
    compute: Compute,
    spec: RetrieverSpec,
    data: DataSet,
    names: Collection[str],
    limit: int = MAX_PAIRS,
) -> ModelPassport:
    """What is stored of those parts of a model's passport that the checks need.

    Raises:
        UserError: the model's files are not here, and no results of it either.
    """
    only = {part for name in names for part in CHECKS[name].parts}
    return passports.passport(compute, spec, data, limit, only)


def job(compute: Compute, found: ModelPassport) -> Job:
    """What computes all that is missing of it."""
    return passports.job(compute, found)


def checks(
    found: ModelPassport,
    baseline: Baseline,
    tolerances: Tolerances,
    names: Sequence[str],
) -> list[Check]:
    """Each check of `names`. One that the baseline has no number for is not checked, and its line
    says why; one whose number only this passport lacks fails."""
    return [CHECKS[name].make(found, baseline, getattr(tolerances, name)) for name in names]


def _relocation(found: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
    """The last-minus-first difference by relocation: what position alone does to the score, in
    standard deviations of each model's scores of the same pairs, since models differ in their
    scales."""
    before = baseline.numbers.get("relocation", {}).get("last_minus_first")
    if before is None:
        return _absent(
            "relocation",
            "The baseline has no last-minus-first difference by relocation.",
            baseline,
            "relocation",
        )
    now = _numbers(found, "relocation").get("last_minus_first")
    if now is None:
        return _lost(
            "relocation", "last-minus-first difference by relocation", found, "relocation", before
        )
    same, old, new = _shared(found, baseline)
    if not same:
        return _absent("relocation", _NO_PAIR, baseline, "attribution")
    now, before = _in_units_of(new, now), _in_units_of(old, before)
    excess = _further(now.value, before.value)
    return _judged(
        "relocation",
        "Moving the evidence from the first to the last third changes the score by "
        f"{now.value:+.3f} standard deviations{_over(now, 'pairs')}, compared with "
        f"{before.value:+.3f}{_over(before, 'pairs')} in the baseline. That is {excess:.3f} "
        f"further from 0, or across it; the tolerance is {tolerance:g}.",
        now,
        before,
        excess,
        tolerance,
    )


def _curve(found: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
    """The primacy-recency index of the attribution curve."""
    indices = {
        key: value
        for key, value in baseline.numbers.get("attribution", {}).items()
        if key.endswith(_INDEX)
    }
    if not indices:
        line = "The baseline has no primacy-recency index."
        return _absent("curve", line, baseline, "attribution")
    # The baseline's own curve: another method's, such as the profile, is another question's answer.
    key, before = next(iter(indices.items()))
    method = key.removesuffix(_INDEX)
    now = _numbers(found, "attribution").get(key)
    if now is None:
        what = f"primacy-recency index of {method}"
        return _lost("curve", what, found, "attribution", before)
    excess = _further(now.value, before.value)
    return _judged(
        "curve",
        f"The primacy-recency index of {method} is {now.value:+.3f}{_over(now, 'pairs')}, "
        f"compared with {before.value:+.3f}{_over(before, 'pairs')} in the baseline. That is "
        f"{excess:.3f} further from 0, or across it; the tolerance is {tolerance:g}.",
        now,
        before,
        excess,
        tolerance,
    )


def _psi(found: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
    """PSI less what shuffled positions give; it may fall freely."""
    before = baseline.numbers.get("ranking", {}).get("psi_minus_permutation")
    if before is None:
        return _absent(
            "psi", "The baseline has no PSI minus its mean under permutation.", baseline, "ranking"
        )
    now = _numbers(found, "ranking").get("psi_minus_permutation")
    if now is None:
        return _lost("psi", "PSI minus its mean under permutation", found, "ranking", before)
    excess = max(now.value - before.value, 0.0)
    return _judged(
        "psi",
        f"PSI minus its mean under permutation is {now.value:+.3f}{_over(now, 'queries')}, "
        f"compared with {before.value:+.3f}{_over(before, 'queries')} in the baseline. The "
        f"increase is {excess:.3f}; the tolerance is {tolerance:g}.",
        now,
        before,
        excess,
        tolerance,
    )


def _truncation(found: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
    """How much of a long text is read; more may be."""
    before = baseline.numbers.get("audit", {}).get("tokens_read")
    if before is None:
        line = "The baseline doesn't contain the model's truncation point."
        return _absent("truncation", line, baseline, "audit")
    now = _numbers(found, "audit").get("tokens_read")
    if now is None:
        return _lost("truncation", "truncation point", found, "audit", before)
    excess = max(before.value - now.value, 0.0)
    return _judged(
        "truncation",
        f"The model reads {now.value:,.0f} tokens of a long text{_over(now, 'texts')}, compared "
        f"with {before.value:,.0f}{_over(before, 'texts')} in the baseline. That is "
        f"{excess:,.0f} fewer; the tolerance is {tolerance:g}.",
        now,
        before,
        excess,
        tolerance,
    )


def _drift(found: ModelPassport, baseline: Baseline, tolerance: float) -> Check:
    """Mean absolute difference of the scores of the pairs whose texts are the same, in standard
    deviations of the baseline's."""
    if not baseline.scores:
        return _absent("drift", "The baseline has no scores of pairs.", baseline, "attribution")
    if not found.scores:
        return _lost("drift", "score of a pair", found, "attribution", None)
    same, old, new = _shared(found, baseline)
    if not same:
        return _absent("drift", _NO_PAIR, baseline, "attribution")
    moved = np.abs(new - old) / _spread(old)
    excess, most = float(moved.mean()), int(moved.argmax())
    gone = len(baseline.scores) - len(same)
    line = (
        f"The scores of {len(same):,} pairs changed by {excess:.4f} standard deviations of the "
        f"baseline's scores on average, and most for pair {same[most][:80]}, by "
        f"{moved[most]:.4f}; the tolerance is {tolerance:g}."
    )
    if gone:
        line += f" {gone:,} of the baseline's pairs don't exist here with the same texts."
    n = len(same)
    return _judged(
        "drift", line, BaselineNumber(excess, n), BaselineNumber(0.0, n), excess, tolerance
    )


_NO_PAIR = "None of the baseline's pairs exists here with the same texts."


def _shared(
    found: ModelPassport, baseline: Baseline
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    """The pairs [n] whose texts are the same in both, and their scores [n] before and now."""
    same = [
        pair_id
        for pair_id, one in baseline.scores.items()
        if (now := found.scores.get(pair_id)) is not None and now.texts == one.texts
    ]
    old = np.array([baseline.scores[pair_id].score for pair_id in same])
    new = np.array([found.scores[pair_id].score for pair_id in same])
    return same, old, new


def _spread(scores: NDArray[np.float64]) -> float:
    # Scores that are all equal have no spread: they are compared as they are.
    return float(scores.std()) or 1.0


def _in_units_of(scores: NDArray[np.float64], one: BaselineNumber) -> BaselineNumber:
    return BaselineNumber(one.value / _spread(scores), one.n, one.n_documents)


def _further(now: float, before: float) -> float:
    """By how much a signed bias grew: it may shrink freely, but not cross 0."""
    return max(now - max(before, 0.0), min(before, 0.0) - now, 0.0)


def _over(one: BaselineNumber, units: str) -> str:
    """What a number is over, in words: ` over 29 pairs of 28 documents`."""
    if not one.n:
        return ""
    documents = f" of {one.n_documents:,} documents" if one.n_documents else ""
    return f" over {one.n:,} {units if one.n > 1 else units.removesuffix('s')}{documents}"


def _numbers(found: ModelPassport, part: str) -> dict[str, BaselineNumber]:
    return {
        number.key: BaselineNumber(
            number.estimate.value, number.estimate.n, number.estimate.n_resampled
        )
        for one in found.parts
        if one.key == part
        for number in one.numbers
    }


def _judged(
    name: str,
    line: str,
    now: BaselineNumber,
    before: BaselineNumber,
    excess: float,
    tolerance: float,
) -> Check:
    # What a sum of floats leaves behind is no difference.
    outcome: Outcome = "pass" if excess <= tolerance + 1e-9 else "fail"
    if (now.n, now.n_documents) != (before.n, before.n_documents):
        line += " The two values cover different samples, so the data may explain the difference."
    return Check(name, outcome, line, *_sized(now), *_sized(before), excess, tolerance)


def _sized(one: BaselineNumber | None) -> tuple[float | None, int | None, int | None]:
    return (
        (None, None, None) if one is None else (one.value, one.n or None, one.n_documents or None)
    )


def _absent(name: str, line: str, baseline: Baseline, part: str) -> Check:
    return Check(name, "not checked", " ".join(filter(None, (line, baseline.absent.get(part)))))


def _lost(
    name: str, what: str, found: ModelPassport, part: str, before: BaselineNumber | None
) -> Check:
    why = next((one.absent for one in found.parts if one.key == part and one.absent), "")
    line = f"{found.name} has no {what}, but the baseline does: {why or 'it is not defined.'}"
    return Check(name, "fail", line, *_sized(None), *_sized(before))


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a check is made, and the parts of the passport that it reads."""

    parts: tuple[str, ...]
    make: Callable[[ModelPassport, Baseline, float], Check]


CHECKS = {
    "relocation": _Kind(("relocation", "attribution"), _relocation),
    "curve": _Kind(("attribution",), _curve),
    "psi": _Kind(("ranking",), _psi),
    "truncation": _Kind(("audit",), _truncation),
    "drift": _Kind(("attribution",), _drift),
}
"""Every check by its name."""

NAMES = tuple(CHECKS)


def entry(found: ModelPassport, baseline: Baseline, made: Sequence[Check]) -> CheckAnswer:
    """What was checked, as JSON has it."""
    return {
        "model": found.name,
        "weights": found.model.weights,
        "dataset": found.dataset,
        "baseline": baseline.heading,
        "passed": passed(made),
        "checks": [cast(CheckEntry, asdict(one)) for one in made],
    }


def passed(made: Sequence[Check]) -> bool:
    """Whether every one passed: a check that could not be made did not."""
    return all(one.outcome == "pass" for one in made)


def failed(made: Sequence[Check]) -> bool:
    """Whether any failed."""
    return any(one.outcome == "fail" for one in made)
