"""What `check` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from poslens.commands.answers import DataSet, Model

Outcome = Literal["pass", "fail", "not checked"]


class CheckEntry(TypedDict):
    """One check."""

    name: Annotated[str, "relocation, curve, psi, truncation or drift."]
    outcome: Annotated[Outcome, "The result of the check."]
    value: Annotated[float | None, "The model's value; null if unknown."]
    n: Annotated[
        int | None, ("Number of pairs, queries or texts that the value covers; null if unknown.")
    ]
    n_documents: Annotated[int | None, "Number of distinct documents; null if unknown."]
    baseline: Annotated[float | None, "The baseline's value; null if unknown."]
    baseline_n: Annotated[
        int | None,
        ("Number of pairs, queries or texts that the baseline's value covers; null if unknown."),
    ]
    baseline_n_documents: Annotated[int | None, "Number of distinct documents; null if unknown."]
    excess: Annotated[float | None, "By how much the model is worse, in the value's unit."]
    tolerance: Annotated[float | None, "By how much the model may be worse, in the same unit."]
    line: Annotated[str, "The result in one sentence."]


class CheckAnswer(TypedDict):
    """A model against a baseline."""

    model: Model
    weights: Annotated[str, "Digest of the model's files, in hexadecimal."]
    dataset: DataSet
    baseline: Annotated[str, "The baseline's model and data set, in one line."]
    passed: Annotated[bool, "Whether every check passed; false also if one could not be made."]
    checks: Annotated[list[CheckEntry], "The checks."]
