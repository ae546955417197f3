"""What `check` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from poslens.commands.answers import DataSet, Model

Outcome = Literal["pass", "fail", "not checked"]


class CheckEntry(TypedDict):
    """One check."""

    name: Annotated[str, "relocation, curve, psi, truncation or drift."]
    outcome: Annotated[Outcome, "The result of the check."]
    value: Annotated[float | None, "The model's number; null if unknown."]
    n: Annotated[int | None, "How many pairs, queries or texts it is over; null if unknown."]
    n_documents: Annotated[int | None, "How many different documents; null if unknown."]
    baseline: Annotated[float | None, "The baseline's number; null if unknown."]
    baseline_n: Annotated[int | None, "How many pairs, queries or texts that is over."]
    baseline_n_documents: Annotated[int | None, "How many different documents; null if unknown."]
    excess: Annotated[float | None, "By how much the model is worse, in the number's unit."]
    tolerance: Annotated[float | None, "By how much it may be worse, in the same unit."]
    line: Annotated[str, "The check in words."]


class CheckAnswer(TypedDict):
    """A model against a baseline."""

    model: Model
    weights: Annotated[str, "Digest of the model's files, in hexadecimal."]
    dataset: DataSet
    baseline: Annotated[str, "The baseline's model and data set, in a line."]
    passed: Annotated[bool, "Whether every check passed: false also where one was not checked."]
    checks: Annotated[list[CheckEntry], "Each check."]
