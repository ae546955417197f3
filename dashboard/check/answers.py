"""What `check` prints as JSON; see `dashboard/core/answers.py`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from dashboard.core.answers import DataSet, Model

Outcome = Literal["pass", "fail", "not checked"]


class CheckEntry(TypedDict):
    """One check."""

    name: Annotated[str, "lean, psi, truncation or drift."]
    outcome: Annotated[Outcome, "What came of it."]
    value: Annotated[float | None, "The number now; null where there is none."]
    baseline: Annotated[float | None, "The number of the baseline; null where there is none."]
    excess: Annotated[float | None, "How far it is on the wrong side, in the number's unit."]
    tolerance: Annotated[float | None, "How far it may be, in the same unit."]
    line: Annotated[str, "All of it in words."]


class CheckAnswer(TypedDict):
    """A model against a baseline."""

    model: Model
    weights: Annotated[str, "Digest of the model's files, in hexadecimal."]
    dataset: DataSet
    baseline: Annotated[str, "What the baseline is of, in a line."]
    passed: Annotated[bool, "Whether no check failed."]
    checks: Annotated[list[CheckEntry], "Each check."]
