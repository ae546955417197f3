"""What `precompute`, `failures` and `curve` print as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import DataSet, Documents, Method, Model


class Precomputed(TypedDict):
    """What was computed of a data set."""

    model: Model
    method: Method
    dataset: DataSet
    total: Annotated[int, "Pairs asked for."]
    done: Annotated[int, "Pairs that are stored now, failed ones among them."]
    computed: Annotated[int, "Pairs that this command computed; the others were there."]
    failed: Annotated[int, "Pairs among those computed that gave no result."]
    seconds: Annotated[float, "How long it took, in seconds."]


class FailedPair(TypedDict):
    """A pair without a result."""

    pair: Annotated[str, "Id of the pair."]
    reason: Annotated[str, "Why there is none, in a sentence."]


class Failures(TypedDict):
    """The pairs of a data set that gave no result."""

    model: Model
    method: Method
    dataset: DataSet
    total: Annotated[int, "Pairs of the data set."]
    failed: Annotated[list[FailedPair], "Those that gave no result."]


class CurveRow(TypedDict):
    """A position of a data set's curve."""

    model: Model
    dataset: DataSet
    method: Method
    bin: Annotated[int, "Number of the position, 0 to 99."]
    position: Annotated[float, "The position, 0 to 1 of what is read, or of the text."]
    mean: Annotated[float | None, "Mean attribution there, in the unit of the normalization."]
    std: Annotated[float | None, "Standard deviation over pairs, in the same unit."]
    ci_low: Annotated[float | None, "Lower end of the mean's 95% interval; null below 10 documents"]
    ci_high: Annotated[
        float | None, "Upper end of the mean's 95% interval; null below 10 documents."
    ]
    magnitude: Annotated[float | None, "Mean attribution without the sign; null if not stored."]
    n: Annotated[int, "Pairs that are averaged."]
    n_documents: Documents
    n_truncated: Annotated[int, "Pairs whose document is longer than the model reads."]
    n_failed: Annotated[int, "Pairs that gave no result and are left out."]
    n_read: Annotated[int | None, "Pairs read at this position; null where that is all of them."]
