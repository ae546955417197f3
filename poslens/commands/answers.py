"""JSON output of commands: shapes that several commands share, and printing.

A table's shape is derived from its rows (`poslens/rows.py`). Every other shape is a TypedDict in
`answers.py` in the command's folder, whose fields are annotated with their meaning and unit.
`python -m tools.docs` generates docs/json.md and docs/json-schema.json from them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
from poslens.rows import answer_of

if TYPE_CHECKING:
    import pandas as pd

    from poslens.attribution.types import Provenance
    from poslens.figures.captions import Provenances

Row = TypeVar("Row")
Answer = TypeVar("Answer")

# -- shapes ----------------------------------------------------------------------------------------


class ResultSource(TypedDict):
    """Where numbers come from; fields that are unknown or do not apply are omitted."""

    poslens: Annotated[str, "Version of PosLens."]
    model: Annotated[str, "Name of the model."]
    model_source: NotRequired[Annotated[str, "Origin of the model's weights."]]
    weights: NotRequired[Annotated[str, "Digest of the model's files, in hexadecimal."]]
    method: Annotated[str, "The method with its parameters."]
    dataset: Annotated[str, "Name of the data set."]
    dataset_files: NotRequired[
        Annotated[
            str,
            "Digest of the data set's files, in hexadecimal: the first 16 digits of the SHA-256 of "
            "its only file, or else of the output of `sha256sum` for its files in alphabetical "
            "order.",
        ]
    ]
    n_pairs: NotRequired[Annotated[int, "Number of pairs that the numbers cover."]]
    n_queries: NotRequired[Annotated[int, "Number of queries that the numbers cover."]]
    n_documents: NotRequired[Annotated[int, "Number of documents that the numbers cover."]]
    max_length: NotRequired[
        Annotated[int, "Context limit of the model, in tokens (of an endpoint, in words)."]
    ]
    truncated: NotRequired[Annotated[int, "Number of documents longer than the context limit."]]
    precision: NotRequired[Annotated[str, "Number format of the computation."]]
    prompts: NotRequired[Annotated[str, "Prompts added to the texts."]]
    selection: NotRequired[Annotated[str, "The pairs, queries or documents that were selected."]]
    units: NotRequired[Annotated[str, "Units that tokens were joined to, and how."]]
    control: NotRequired[Annotated[str, "Control that was subtracted."]]
    interval: NotRequired[Annotated[str, "Items that were resampled for the intervals."]]
    band: NotRequired[
        Annotated[str, "What the bands of a figure show, if they are not intervals of the mean."]
    ]
    method_preference: NotRequired[
        Annotated[
            str,
            "Primacy-recency index of the attribution method on the order-blind encoder, where 0 "
            "is expected; or why it is unknown.",
        ]
    ]


def source(provenance: Provenance) -> ResultSource:
    """A provenance as in JSON."""
    return cast(ResultSource, provenance.entry())


class TableAnswer(TypedDict, Generic[Row]):
    """A table with its provenance."""

    provenance: Annotated[list[ResultSource], "Provenance of the rows, one entry per model."]
    rows: Annotated[list[Row], "Rows of the table."]


def table_answer(row: type) -> Any:
    """The shape of a table whose rows are of this dataclass."""
    return TableAnswer[answer_of(row)]  # type: ignore[misc]


class Lines(Generic[Row]):
    """One object per line of stdout (JSON Lines), each printed when it is computed."""


Model = Annotated[str, "Name of the model."]
Method = Annotated[str, "The method with its parameters."]
DataSet = Annotated[str, "Name of the data set."]
Low = Annotated[float | None, "Lower end of the 95% interval; null if there is none."]
High = Annotated[float | None, "Upper end of the 95% interval; null if there is none."]
Documents = Annotated[int, "Number of distinct documents."]


def answer_from(shape: type[Answer], source: object = None, /, **values: Any) -> Answer:
    """An answer of this shape: `values`, and for its other fields the attributes of `source` that
    have their names.

    Raises:
        ValueError: the shape has no field for one of `values`.
    """
    names = list(shape.__annotations__)
    if unknown := [name for name in values if name not in names]:
        raise ValueError(f"{shape.__name__} has no {unknown}")
    fields = (values[name] if name in values else getattr(source, name) for name in names)
    return cast(Answer, dict(zip(names, fields, strict=True)))


# -- printing --------------------------------------------------------------------------------------


def print_json(answer: Any) -> None:
    """Print an answer as one line of JSON."""
    print(json_text(answer))


def print_table(
    frame: pd.DataFrame, format: Literal["json", "csv"], provenance: Provenances
) -> None:
    """Print a table as JSON with its provenance, or as plain CSV with the provenance as text on
    stderr. With --out, write it in that file's format."""
    from poslens.export.files import table_bytes, table_files
    from poslens.figures.captions import caption_text, provenance_entries

    if file := result_file():
        file.files = table_files(frame, file.path.name, file.format, provenance)  # type: ignore[arg-type]
        return
    sys.stdout.buffer.write(table_bytes(frame, format, provenance))
    if format == "json":
        sys.stdout.buffer.write(b"\n")
    else:
        print(f"Provenance: {caption_text(provenance_entries(provenance))}", file=sys.stderr)


def _in_text(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} ({each})" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def print_answer(answer: Mapping[str, Any], format: Literal["text", "json"]) -> None:
    """Print names and values as JSON, or as one line of text."""
    if format == "json":
        print_json(answer)
        return
    fields = {name.replace("_", " "): _in_text(value) for name, value in answer.items()}
    print(
        " · ".join(f"{name}: {value}" for name, value in fields.items() if value not in ("", None))
    )
