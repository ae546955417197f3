"""What `precompute` and `failures` print as JSON; see `dashboard/core/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from dashboard.core.answers import DataSet, Method, Model


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


class Failure(TypedDict):
    """A pair without a result."""

    pair: Annotated[str, "Id of the pair."]
    reason: Annotated[str, "Why there is none, in a sentence."]


class Failures(TypedDict):
    """The pairs of a data set that gave no result."""

    model: Model
    method: Method
    dataset: DataSet
    total: Annotated[int, "Pairs of the data set."]
    failed: Annotated[list[Failure], "Those that gave no result."]
