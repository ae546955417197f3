"""Compare a model with its stored passport, pair by pair and query by query. No Streamlit here."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from numbers import Real

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison, adjusted
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.commands.answers import answer_from
from poslens.compute.compute import Compute
from poslens.figures.palettes import printable
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.check.answers import BaselinePart, CheckAnswer, CheckEntry, Outcome
from poslens.studies.check.baseline import Baseline
from poslens.studies.check.measures import MEASURES, NAMES, Check, PairedMeasure, part_of
from poslens.studies.passport import service as passports
from poslens.studies.passport.service import ModelPassport
from poslens.study_part import MAX_PAIRS


@dataclass(frozen=True, slots=True)
class Tolerances:
    """How much worse than the baseline each number may be.

    `relocation` and `drift` are in standard deviations of the pairs' scores, `position_effect` and
    `ranking` in nDCG@10, `audit` and `misses` in shares (0 to 1), and `truncation` in tokens.
    """

    relocation: float = 0.05
    position_effect: float = 0.02
    ranking: float = 0.02
    audit: float = 0.02
    misses: float = 0.02
    truncation: float = 0
    drift: float = 0.05

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
                raise UserError(f"The tolerance of {name} must be 0 or more.")


def chosen(baseline: Baseline, only: Sequence[str] | None = None) -> list[str]:
    """The checks to make: those of `only`, or all that the baseline has a number for, except
    `drift`.

    Raises:
        UserError: the baseline was made without the part that a check of `only` compares, or has
            no number that can be checked.
    """
    has = {name: part_of(name, baseline) in baseline.numbers for name in NAMES}
    for name in only or ():
        if not has[name]:
            raise UserError(
                f"The baseline lacks the part that {name} compares: write it again with `poslens "
                f"passport --part {part_of(name, baseline)}`."
            )
    names = list(only or (name for name in NAMES if _stated(name, baseline) and name != "drift"))
    if not names:
        raise UserError(
            "The baseline has no number of relocation, position_effect, ranking, audit or misses: "
            "write it again with `poslens passport`."
        )
    return names


def passport(
    compute: Compute,
    spec: RetrieverSpec,
    data: DataSet,
    baseline: Baseline,
    names: Collection[str],
) -> ModelPassport:
    """The stored results that the checks compare, over the baseline's pairs.

    Raises:
        UserError: neither the model's files nor any of its results are on this machine.
    """
    parts = {part_of(name, baseline) for name in names if MEASURES[name].comparable(baseline)}
    return passports.passport(
        compute,
        spec,
        data,
        len(baseline.scores) or MAX_PAIRS,
        parts,
        baseline.moved() or DEFAULT_PAIRS,
    )


def checks(
    passport: ModelPassport,
    baseline: Baseline,
    tolerances: Tolerances,
    names: Sequence[str],
) -> list[Check]:
    """The checks of `names`, with p values Holm-adjusted over those that compare documents. A check
    whose number the baseline lacks is not made, and its line says why. A check whose number only
    this passport lacks fails."""
    drafts = [MEASURES[name].make(passport, baseline, getattr(tolerances, name)) for name in names]
    comparisons = adjusted([draft.comparison for draft in drafts])
    return [
        check if comparison is None else _decided(check, comparison)
        for check, comparison in zip(drafts, comparisons, strict=True)
    ]


def _decided(draft: Check, comparison: Comparison) -> Check:
    """The check with its outcome: it passes if an increase beyond the tolerance is ruled out or the
    model is shown to be better, and otherwise fails if the model is shown to be worse."""
    measure = MEASURES[draft.name]
    assert isinstance(measure, PairedMeasure)  # no other has a comparison
    factor, _, unit = measure.scale
    sentence = comparison.in_words(factor, unit, one_sided=True)
    outcome: Outcome = "too few documents"
    if comparison.rules_out("higher") or comparison.verdict == "lower":
        outcome = "pass"
        if comparison.verdict == "too few documents":
            sentence = f"An increase beyond {factor * comparison.margin:g}{unit} is ruled out."
    elif comparison.verdict == "higher":
        outcome = "fail"
    return replace(draft, outcome=outcome, comparison=comparison, line=f"{draft.line} {sentence}")


# -- answers ---------------------------------------------------------------------------------------


def baseline_parts(baseline: Baseline, names: Sequence[str]) -> list[BaselinePart]:
    """The data that the compared numbers of the baseline cover."""
    parts: list[BaselinePart] = []
    for name in names:
        measure = MEASURES[name]
        if isinstance(measure, PairedMeasure) and measure.comparable(baseline):
            number = baseline.numbers[measure.part][measure.key]
            parts.append(
                {
                    "check": name,
                    "units": measure.units,
                    "n": len(number.items),
                    "n_documents": number.n_documents,
                    "selection": baseline.selections.get(measure.part, ""),
                }
            )
    return parts


def _stated(name: str, baseline: Baseline) -> bool:
    """Whether the baseline has the number that a check compares."""
    measure = MEASURES[name]
    if isinstance(measure, PairedMeasure):
        return measure.key in baseline.numbers.get(measure.part, {})
    return measure.comparable(baseline)


def left_out(baseline: Baseline) -> list[str]:
    """The checks that are made only if they are asked for, because the baseline has their part but
    not their number, each with the reason."""
    names = (
        name
        for name in NAMES
        if name != "drift"
        and part_of(name, baseline) in baseline.numbers
        and not _stated(name, baseline)
    )
    reasons = {name: baseline.absent.get(part_of(name, baseline), "") for name in names}
    return [
        f"{name}: left out, because the baseline lacks its number{f'. {why}' if why else '.'}"
        for name, why in reasons.items()
    ]


def baseline_lines(baseline: Baseline, names: Sequence[str]) -> list[str]:
    """The baseline as text: its model and data set, then the data that each check's number
    covers."""
    lines = [baseline.heading]
    for baseline_part in baseline_parts(baseline, names):
        documents = (
            ""
            if baseline_part["units"] == "documents"
            else f" of {baseline_part['n_documents']:,} documents"
        )
        selection = f" ({baseline_part['selection']})" if baseline_part["selection"] else ""
        lines.append(
            f"{baseline_part['check']}: {baseline_part['n']:,} "
            f"{baseline_part['units']}{documents}{selection}"
        )
    return lines


def entry(passport: ModelPassport, baseline: Baseline, checks: Sequence[Check]) -> CheckAnswer:
    """The checks as JSON."""
    return {
        "model": passport.name,
        "weights": passport.model.weights,
        "dataset": passport.dataset,
        "baseline": baseline.heading,
        "baseline_parts": baseline_parts(baseline, [check.name for check in checks]),
        "passed": exit_code(checks) == 0,
        "checks": [_entry(check) for check in checks],
    }


def _entry(check: Check) -> CheckEntry:
    comparison = check.comparison
    return answer_from(
        CheckEntry,
        check,
        low=comparison.difference.low if comparison else None,
        high=comparison.difference.high if comparison else None,
        verdict=comparison.verdict if comparison else None,
        p_holm=comparison.p_holm if comparison else None,
        documents_needed=comparison.needed_one_sided if comparison else None,
    )


def exit_code(checks: Sequence[Check]) -> int:
    """0: every check passed. 1: one failed. 3: none failed, and one could not be made. 4: all were
    made, none failed, and one has too few documents to decide. (2 is invalid input.)"""
    outcomes = {check.outcome for check in checks}
    codes: dict[Outcome, int] = {"fail": 1, "not checked": 3, "too few documents": 4}
    return next((code for outcome, code in codes.items() if outcome in outcomes), 0)


def junit_bytes(checks: Sequence[Check], title: str) -> bytes:
    """The checks as a JUnit file, which build servers show test by test: passed, failed, or skipped
    if one could not be made or decided."""
    outcomes = [check.outcome for check in checks]
    counts = {
        "tests": str(len(checks)),
        "failures": str(outcomes.count("fail")),
        "errors": "0",
        "skipped": str(len(checks) - outcomes.count("pass") - outcomes.count("fail")),
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": printable(title), **counts})
    for checked in checks:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "poslens.check", "name": checked.name}
        )
        line = printable(checked.line)
        if checked.outcome == "fail":
            ElementTree.SubElement(case, "failure", {"message": line}).text = line
        elif checked.outcome == "pass":
            ElementTree.SubElement(case, "system-out").text = line
        else:
            message = f"{checked.outcome}: {line}"
            ElementTree.SubElement(case, "skipped", {"message": message})
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"
