"""What commands answer: the shapes of JSON that several share, how a command says its own, and how
answers are printed.

A shape is a TypedDict beside its command, in `answers.py` of its folder, in which each field says
in a sentence what it is, with its unit. `python -m tools.docs` makes docs/json.md and
docs/json-schema.json of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NotRequired,
    TypedDict,
    TypeVar,
    cast,
)

from poslens.commands.result_files import result_file
from poslens.export.json_text import json_text

if TYPE_CHECKING:
    import pandas as pd

    from poslens.attribution.curves.bootstrap import Estimate
    from poslens.attribution.types import Provenance
    from poslens.figures.figure_base import Provenances

Command = TypeVar("Command", bound=Callable[..., object])
Row = TypeVar("Row")

# -- shapes ----------------------------------------------------------------------------------------


class ResultSource(TypedDict):
    """Where numbers come from; what is not known, or does not apply, is left out."""

    poslens: Annotated[str, "Version of PosLens."]
    model: Annotated[str, "Name of the model."]
    model_source: NotRequired[Annotated[str, "Where the model's weights come from."]]
    weights: NotRequired[Annotated[str, "Digest of the model's files, in hexadecimal."]]
    method: Annotated[str, "The method with its parameters."]
    dataset: Annotated[str, "Name of the data set."]
    n_pairs: NotRequired[Annotated[int, "Pairs that the numbers are over."]]
    n_queries: NotRequired[Annotated[int, "Queries that the numbers are over."]]
    n_documents: NotRequired[Annotated[int, "Documents that the numbers are over."]]
    max_length: NotRequired[Annotated[int, "Tokens of a text that the model reads at most."]]
    truncated: NotRequired[Annotated[int, "Documents that are longer than the model reads."]]
    precision: NotRequired[Annotated[str, "Number format of the computation."]]
    prompts: NotRequired[Annotated[str, "What the model is given before the texts."]]
    selection: NotRequired[Annotated[str, "Which pairs, queries or documents, in words."]]
    units: NotRequired[Annotated[str, "What tokens were joined to, and how."]]
    control: NotRequired[Annotated[str, "What was subtracted."]]
    interval: NotRequired[Annotated[str, "What was resampled for the intervals."]]


def source(provenance: Provenance) -> ResultSource:
    """A provenance as JSON has it."""
    return cast(ResultSource, provenance.entry())


class TableAnswer(TypedDict, Generic[Row]):
    """A table with its provenance."""

    provenance: Annotated[list[ResultSource], "Where the rows come from, an entry for each model."]
    rows: Annotated[list[Row], "The rows of the table."]


class Interval(TypedDict):
    """A number with its interval."""

    value: Annotated[float, "The number."]
    low: Annotated[float | None, "Lower end of its 95% interval; null of too few documents."]
    high: Annotated[float | None, "Upper end of its 95% interval; null of too few documents."]


def interval(estimate: Estimate | None) -> Interval | None:
    """An estimate as JSON has it."""
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


class Lines(Generic[Row]):
    """An object on each line of stdout (JSON Lines), as long commands say each when it is done."""


Model = Annotated[str, "Name of the model."]
Method = Annotated[str, "The method with its parameters."]
DataSet = Annotated[str, "Name of the data set."]
Low = Annotated[float | None, "Lower end of the 95% interval; null where there is none."]
High = Annotated[float | None, "Upper end of the 95% interval; null where there is none."]
Queries = Annotated[int, "Queries."]
Documents = Annotated[int, "Different documents."]
NDCG = Annotated[float | None, "nDCG@10, 0 to 1."]
PSI = Annotated[float | None, "Position sensitivity index, 0 (even) to 1."]
PSIUnderPermutation = Annotated[float | None, "Mean PSI when the queries' positions are shuffled."]
P = Annotated[float | None, "Share of shuffles whose PSI is at least as high."]


def answers(shape: Any) -> Callable[[Command], Command]:
    """Say what a command prints as JSON: a shape, or several by the options that ask for each."""

    def said(command: Command) -> Command:
        command.__dict__["answers"] = shape if isinstance(shape, Mapping) else {"": shape}
        return command

    return said


# -- printing --------------------------------------------------------------------------------------


def print_json(answer: Any) -> None:
    """Print an answer as one line of JSON."""
    print(json_text(answer))


def print_table(
    frame: pd.DataFrame, format: Literal["json", "csv"], provenance: Provenances
) -> None:
    """Print a table as JSON with its provenance, or as plain CSV, whose provenance goes to
    stderr in words; with --out write it in that file's format."""
    from poslens.export.files import table_bytes, table_files
    from poslens.figures.figure_base import caption_text, provenance_entries

    if file := result_file():
        file.files = table_files(frame, file.path.name, file.format, provenance)  # type: ignore[arg-type]
        return
    sys.stdout.buffer.write(table_bytes(frame, format, provenance))
    if format == "json":
        sys.stdout.buffer.write(b"\n")
    else:
        print(f"Provenance: {caption_text(provenance_entries(provenance))}", file=sys.stderr)


def print_answer(answer: Mapping[str, Any], format: Literal["text", "json"]) -> None:
    """Print an answer of names and values: as JSON, or as text in one line."""
    if format == "json":
        print_json(answer)
        return
    said = {
        name.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in answer.items()
    }
    print(" · ".join(f"{name} {value}" for name, value in said.items() if value not in ("", None)))
