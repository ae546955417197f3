"""What `check` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from poslens.attribution.evaluation.comparison import Verdict
from poslens.commands.answers import DataSet, Model

Outcome = Literal["pass", "fail", "too few documents", "not checked"]


class CheckEntry(TypedDict):
    """One check."""

    name: Annotated[
        str, "relocation, position_effect, ranking, audit, misses, truncation or drift."
    ]
    outcome: Annotated[Outcome, "The result of the check."]
    value: Annotated[float | None, "The model's value; null if unknown."]
    baseline: Annotated[float | None, "The baseline's value; null if unknown."]
    n: Annotated[
        int | None,
        "Number of pairs, queries or documents that both values cover; null if unknown.",
    ]
    n_documents: Annotated[int | None, "Number of distinct documents; null if none are resampled."]
    difference: Annotated[float | None, "By how much the model is worse, in the value's unit."]
    low: Annotated[float | None, "Lower end of its 95% interval; null if there is none."]
    high: Annotated[float | None, "Upper end of its 95% interval; null if there is none."]
    verdict: Annotated[
        Verdict | None,
        "Whether the difference is higher (worse), lower, equivalent to 0 within the tolerance, or "
        "cannot be decided; null if no documents are resampled.",
    ]
    p_holm: Annotated[
        float | None, "p of the difference, Holm-adjusted over all checks; null if there is none."
    ]
    documents_needed: Annotated[
        int | None, "Documents needed for a decision, estimated; null once decided, or if unknown."
    ]
    tolerance: Annotated[float | None, "By how much the model may be worse, in the value's unit."]
    line: Annotated[str, "The result in one line."]


class BaselinePart(TypedDict):
    """The data that a number of the baseline covers."""

    check: Annotated[str, "Name of the check."]
    units: Annotated[str, "pairs, queries or documents."]
    n: Annotated[int, "How many of them."]
    n_documents: Annotated[int, "Number of distinct documents."]
    selection: Annotated[str, "How they were selected; empty for all."]


class CheckAnswer(TypedDict):
    """A model compared with a baseline."""

    model: Model
    weights: Annotated[str, "Digest of the model's files, in hexadecimal."]
    dataset: DataSet
    baseline: Annotated[str, "The baseline's model and data set, in one line."]
    baseline_parts: Annotated[
        list[BaselinePart], "The data behind the compared numbers of the baseline."
    ]
    passed: Annotated[
        bool, "Whether every check passed; false also if one could not be made or decided."
    ]
    checks: Annotated[list[CheckEntry], "The checks."]
