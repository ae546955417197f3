"""FineWeb-PosQ (Zeng et al. 2025, arXiv 2505.13950): questions by the third of a long passage that
answers them.

One file or a folder of them, Parquet, JSON lines or delimited text, with the columns `content`,
`question` and `span_class`: `beginning`, `middle` or `end`, or a list of them. A row without a
question gives no pair; its content is only part of the corpus, which contains every content once.
The data set does not state the character offsets of answers, so pairs have no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import tables
from poslens.attribution.datasets.formats import Format, files_below, has_columns, register
from poslens.attribution.datasets.judged_pairs import Judged, judged_passages
from poslens.attribution.datasets.schema import Row, accepted, as_text, optional, required
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import Groups, Judgment, Passages, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair

GROUPS = Groups(
    "FineWeb-PosQ",
    "the third of the passage that answers them",
    ("beginning", "middle", "end"),
)


def _classes(value: Any, name: str) -> tuple[str, ...]:
    """The classes of a row, in the groups' order."""
    given = value if isinstance(value, list) else [value]
    named = {item.strip().casefold() for item in given if isinstance(item, str)}
    if not named or len(named) < len(given) or not named <= set(GROUPS.names):
        raise UserError(f"{name} is not among {', '.join(GROUPS.names)}")
    return tuple(name for name in GROUPS.names if name in named)


CONTENT, CLASSES = required("content", as_text), required("span_class", _classes)
QUESTION = optional("question", as_text)
COLUMNS = (CONTENT, CLASSES, QUESTION)


def judgments(
    files: Sequence[File], name: str, passages: Passages
) -> Iterator[Judgment | Rejection]:
    """Every row as a judgment of its content, or as a rejection; every content is added to
    `passages`.

    Raises:
        UserError: a file is damaged or lacks a column.
    """
    for file in files:
        # Rows of two files in a folder can have the same number.
        prefix = f"{file.name}/" if len(files) > 1 else ""
        read = partial(_judgment, dataset=name, prefix=prefix, passages=passages)
        yield from accepted(file, tables.rows(file, COLUMNS), read)


def _judgment(row: Row, dataset: str, prefix: str, passages: Passages) -> Judgment:
    place = f"{prefix}row-{row.number}"
    document_id, document = passages.of(row[CONTENT], place)
    query = row[QUESTION]
    if query is None:
        raise UserError("the row has no question, so it is only part of the corpus")
    classes = row[CLASSES]
    pair = TextPair(place, query, document, dataset=dataset, query_type=", ".join(classes))
    return Judgment(pair, place, document_id, groups=classes)


def read(path: Path, name: str, title: str = "") -> Judged:
    """Every row with a question, and all contents to search."""
    title = title or f"{name} (FineWeb-PosQ)"
    return judged_passages(judgments, _files(path), name, title, GROUPS)


def _files(path: Path) -> list[File]:
    """The files at a path if all of them have the columns, else none."""
    files = files_below(path, lambda name: bool(tables.suffix(name)))
    return files if all(has_columns(file, COLUMNS) for file in files) else []


register(
    Format(
        name="fineweb-posq",
        description="FineWeb-PosQ (columns content, question and span_class)",
        order=47,
        fits=lambda path: bool(_files(path)),
        read=read,
    )
)
