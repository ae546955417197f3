"""FineWeb-PosQ (Zeng et al. 2025, arXiv 2505.13950): questions by the third of a long passage that
answers them.

One file or a folder of them, Parquet, JSON lines or delimited text, with the columns `content`,
`question` and `span_class`: `beginning`, `middle` or `end`, or a list of them. A row without a
question is no pair: its content is only searched. The corpus are all contents, each text once. The
data set does not say at which characters an answer stands, so no pair has evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import parquet, tables
from poslens.attribution.datasets.formats import files_below, register
from poslens.attribution.datasets.passages import PassageReader
from poslens.attribution.datasets.row import Row
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import Groups, Judgement, Passages, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.text import clean
from poslens.attribution.types import TextPair

COLUMNS = ("content", "question", "span_class")
GROUPS = Groups(
    "fineweb-posq",
    "FineWeb-PosQ",
    "the third of the passage that answers them",
    ("beginning", "middle", "end"),
)

_LOOKED_AT = 20
"""Rows of JSON lines that tell the layout: one without a question may lack that field."""


def judgements(
    files: Sequence[File], name: str, passages: Passages
) -> Iterator[Judgement | Rejection]:
    """Every row as a judgment of its content, or as a rejection; every content is added to
    `passages`.

    Raises:
        UserError: a file is damaged or lacks a column.
    """
    for file in files:
        # In a folder two files have a row 2 each.
        prefix = f"{file.name}/" if len(files) > 1 else ""
        for row in tables.rows(file, COLUMNS):
            place = f"{prefix}row-{row.number}"
            try:
                yield _judgement(row, name, place, passages)
            except UserError as error:
                yield Rejection(file.name, row.number, str(error))


READER = PassageReader(judgements, "FineWeb-PosQ", GROUPS)


def _judgement(row: Row, dataset: str, place: str, passages: Passages) -> Judgement:
    if row.problem:
        raise UserError(row.problem)
    document_id, document = passages.of(_text(row.cells.get("content"), "content"), place)
    question = row.cells.get("question")
    if question is None or (isinstance(question, str) and not question.strip()):
        raise UserError("the row has no question: its content is only searched")
    query = _text(question, "question")
    classes = _classes(row.cells.get("span_class"))
    pair = TextPair(place, query, document, dataset=dataset, query_type=", ".join(classes))
    return Judgement(pair, place, document_id, groups=classes)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"the {what} is missing or no text")
    return clean(value, what).text


def _classes(value: Any) -> tuple[str, ...]:
    """The classes of a row, in the groups' order."""
    given = value if isinstance(value, list) else [value]
    named = {one.strip().casefold() for one in given if isinstance(one, str)}
    if not named or len(named) < len(given) or not named <= set(GROUPS.names):
        raise UserError(f"span_class is not among {', '.join(GROUPS.names)}")
    return tuple(name for name in GROUPS.names if name in named)


def _files(path: Path) -> list[File]:
    """The files at a path, all of which have the columns; none where one has not."""
    files = files_below(path, lambda name: bool(tables.suffix(name)))
    return files if all(map(_fits, files)) else []


def _fits(file: File) -> bool:
    if tables.suffix(file.name) == ".parquet":
        return set(COLUMNS) <= set(parquet.columns_of(file))
    with suppress(UserError):
        rows = list(islice(tables.rows(file, COLUMNS), _LOOKED_AT))
        return any(set(COLUMNS) <= set(row.cells) for row in rows)
    return False


register(
    READER.format(
        "fineweb-posq",
        "FineWeb-PosQ (columns content, question and span_class)",
        47,
        _files,
    )
)
