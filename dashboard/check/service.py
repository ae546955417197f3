"""Whether a model is as it was: its passport against a stored one, number by number. No Streamlit
here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from attribution.datasets import DataSet
from attribution.errors import UserError
from attribution.retrievers.specs import RetrieverSpec
from dashboard.check.answers import CheckAnswer, Outcome
from dashboard.check.baseline import Baseline
from dashboard.core.compute import Compute
from dashboard.core.runs import Job
from dashboard.passport import service as passports
from dashboard.passport.service import Passport
from dashboard.passport.subject import MAX_PAIRS

_INDEX = "_primacy_recency_index"


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How far each number may lie from the baseline's before its check fails.

    `lean` in units of the primacy-recency index, `psi` of PSI, `truncation` in tokens, `drift` in
    standard deviations of the baseline's scores.
    """

    lean: float = 0.05
    psi: float = 0.05
    truncation: float = 0
    drift: float = 0.05

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
                raise UserError(f"The tolerance of {name} is a number from 0 on.")


@dataclass(frozen=True, slots=True)
class Check:
    """One check: `value` against `baseline`, None where there is none; `excess` is what is held
    against `tolerance`. `line` says all of it in words."""

    name: str
    outcome: Outcome
    line: str
    value: float | None = None
    baseline: float | None = None
    excess: float | None = None
    tolerance: float | None = None


def passport(
    compute: Compute,
    spec: RetrieverSpec,
    data: DataSet,
    names: Collection[str],
    limit: int = MAX_PAIRS,
) -> Passport:
    """What is stored of those parts of a model's passport that the checks need.

    Raises:
        UserError: the model's files are not here, and no results of it either.
    """
    only = {CHECKS[name].part for name in names}
    return passports.passport(compute, spec, data, limit, only)


def job(compute: Compute, found: Passport) -> Job:
    """What computes all that is missing of it."""
    return passports.job(compute, found)


def checks(
    found: Passport,
    baseline: Baseline,
    tolerances: Tolerances,
    names: Sequence[str],
) -> list[Check]:
    """Each check of `names`. One that the baseline has no number for is not checked and says so;
    one that only this passport has no number for fails.

    Raises:
        UserError: the baseline has no number for any of them.
    """
    made = [CHECKS[name].make(found, baseline, getattr(tolerances, name)) for name in names]
    if all(one.outcome == "not checked" for one in made):
        raise UserError(
            f"The baseline has nothing to check {found.name} against: {made[0].line} Write it "
            "again with `poslens passport`."
        )
    return made


def other_data(found: Passport, baseline: Baseline) -> str:
    """What tells the baseline's data from these, in a sentence; empty where nothing does."""
    if (baseline.n_pairs, baseline.n_documents) == (found.n_pairs, found.n_documents):
        return ""
    return (
        f"The baseline is over {baseline.n_pairs:,} pairs of {baseline.n_documents:,} documents of "
        f"{baseline.dataset}, and these are {found.n_pairs:,} of {found.n_documents:,}: what "
        "differs may be the data."
    )


def _lean(found: Passport, baseline: Baseline, tolerance: float) -> Check:
    """The curve's primacy-recency index. A lean may shrink freely: only what lies further out than
    the baseline's, or on the other side of the middle, counts."""
    before = {
        key: value
        for key, value in baseline.numbers.get("attribution", {}).items()
        if key.endswith(_INDEX)
    }
    if not before:
        return _absent("lean", "The baseline has no primacy-recency index.")
    # The baseline's own curve: another method's, such as the profile, is another question's answer.
    key, old = next(iter(before.items()))
    method = key.removesuffix(_INDEX)
    new = _numbers(found, "attribution").get(key)
    if new is None:
        return _lost("lean", f"primacy-recency index of {method}", found, "attribution", old)
    excess = max(new - max(old, 0.0), min(old, 0.0) - new, 0.0)
    return _judged(
        "lean",
        f"The primacy-recency index of {method} is {new:+.3f}, the baseline's {old:+.3f}; it lies "
        f"{excess:.3f} further from the middle or across it, and {tolerance:g} is tolerated.",
        new,
        old,
        excess,
        tolerance,
    )


def _psi(found: Passport, baseline: Baseline, tolerance: float) -> Check:
    """PSI less what shuffled positions give; it may fall freely."""
    old = baseline.numbers.get("ranking", {}).get("psi_beyond_chance")
    if old is None:
        return _absent("psi", "The baseline has no PSI beyond chance.")
    new = _numbers(found, "ranking").get("psi_beyond_chance")
    if new is None:
        return _lost("psi", "PSI beyond chance", found, "ranking", old)
    excess = max(new - old, 0.0)
    return _judged(
        "psi",
        f"PSI less what chance gives is {new:+.3f}, the baseline's {old:+.3f}; it rose by "
        f"{excess:.3f}, and {tolerance:g} is tolerated.",
        new,
        old,
        excess,
        tolerance,
    )


def _truncation(found: Passport, baseline: Baseline, tolerance: float) -> Check:
    """How much of a long text is read; more may be."""
    old = baseline.numbers.get("audit", {}).get("tokens_read")
    if old is None:
        return _absent("truncation", "The baseline does not say where the model stops reading.")
    new = _numbers(found, "audit").get("tokens_read")
    if new is None:
        return _lost("truncation", "place where it stops reading", found, "audit", old)
    excess = max(old - new, 0.0)
    return _judged(
        "truncation",
        f"The model reads {new:,.0f} tokens of a long text, the baseline's {old:,.0f}; that is "
        f"{excess:,.0f} fewer, and {tolerance:g} are tolerated.",
        new,
        old,
        excess,
        tolerance,
    )


def _drift(found: Passport, baseline: Baseline, tolerance: float) -> Check:
    """Mean absolute difference of the scores of the pairs whose texts are the same, in standard
    deviations of the baseline's."""
    if not baseline.scores:
        return _absent("drift", "The baseline has no scores of pairs.")
    if not found.scores:
        return _lost("drift", "score of a pair", found, "attribution", None)
    same = [
        pair_id
        for pair_id, one in baseline.scores.items()
        if (now := found.scores.get(pair_id)) is not None and now.texts == one.texts
    ]
    if not same:
        return _absent("drift", "No pair of the baseline is here with the same texts.")
    old = np.array([baseline.scores[pair_id].score for pair_id in same])
    new = np.array([found.scores[pair_id].score for pair_id in same])
    # Scores that are all equal have no spread: they are compared as they are.
    unit = float(old.std()) or 1.0
    moved = np.abs(new - old) / unit
    excess, most = float(moved.mean()), int(moved.argmax())
    gone = len(baseline.scores) - len(same)
    line = (
        f"The scores of {len(same):,} pairs moved by {excess:.4f} standard deviations of the "
        f"baseline's on average, most that of pair {same[most][:80]}, by {moved[most]:.4f}; "
        f"{tolerance:g} is tolerated."
    )
    if gone:
        line += f" {gone:,} of the baseline's pairs are not here with the same texts."
    return _judged("drift", line, excess, 0.0, excess, tolerance)


def _numbers(found: Passport, part: str) -> dict[str, float]:
    return {
        number.key: number.estimate.value
        for one in found.parts
        if one.key == part
        for number in one.numbers
    }


def _judged(
    name: str, line: str, value: float, baseline: float, excess: float, tolerance: float
) -> Check:
    # What a sum of floats leaves behind is no difference.
    outcome: Outcome = "pass" if excess <= tolerance + 1e-9 else "fail"
    return Check(name, outcome, line, value, baseline, excess, tolerance)


def _absent(name: str, line: str) -> Check:
    return Check(name, "not checked", line)


def _lost(name: str, what: str, found: Passport, part: str, old: float | None) -> Check:
    why = next((one.absent for one in found.parts if one.key == part and one.absent), "")
    line = f"{found.name} has no {what} here, and the baseline has: {why or 'it is not defined.'}"
    return Check(name, "fail", line, None, old)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a check is made, and the part of the passport that it reads."""

    part: str
    make: Callable[[Passport, Baseline, float], Check]


CHECKS = {
    "lean": _Kind("attribution", _lean),
    "psi": _Kind("ranking", _psi),
    "truncation": _Kind("audit", _truncation),
    "drift": _Kind("attribution", _drift),
}
"""Every check by its name."""

NAMES = tuple(CHECKS)


def entry(found: Passport, baseline: Baseline, made: Sequence[Check]) -> CheckAnswer:
    """What was checked, as JSON has it."""
    return {
        "model": found.name,
        "weights": found.model.weights,
        "dataset": found.dataset,
        "baseline": baseline.heading,
        "passed": passed(made),
        "checks": [
            {
                "name": one.name,
                "outcome": one.outcome,
                "value": one.value,
                "baseline": one.baseline,
                "excess": one.excess,
                "tolerance": one.tolerance,
                "line": one.line,
            }
            for one in made
        ],
    }


def passed(made: Sequence[Check]) -> bool:
    """Whether none failed."""
    return all(one.outcome != "fail" for one in made)
