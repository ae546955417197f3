"""PolEval 2022, task 3 (passage retrieval in Polish): questions, passages and their pairs.

A folder with `questions.jl` (id, text), `passages.jl` (id, text and, except for customer support,
title), both lines of JSON, and `pairs.tsv` (question-id, passage-id, score, with that header); each
can end in `.gz`. The document is title, one space, text, as in BEIR. Passages are read row by row,
because Wikipedia's corpus has seven million.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from poslens.attribution.datasets.beir import joined
from poslens.attribution.datasets.corpus import Document, documents_of
from poslens.attribution.datasets.formats import Format, named_files, register
from poslens.attribution.datasets.judged_pairs import (
    SCORE,
    Judged,
    JudgmentRow,
    RowsById,
    judged_pairs,
    judgment_rows,
)
from poslens.attribution.datasets.schema import Row, as_id, as_string, optional, required
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.tables import csv_rows, json_rows
from poslens.attribution.datasets.types import JudgedRow, Rejection
from poslens.attribution.text import clean
from poslens.attribution.types import TextPair

LANGUAGE = "pol"

FILES = QUESTIONS, PASSAGES, PAIRS = "questions.jl", "passages.jl", "pairs.tsv"
ID, TEXT = required("id", as_id), required("text", as_string)
TITLE = optional("title", as_string)
PAIR_IDS = required("question-id", as_id), required("passage-id", as_id)


def read(root: Path, name: str, title: str = "") -> Judged:
    """The rows of `pairs.tsv` with a score above zero; every passage is a document."""
    named = named_files(root, FILES)

    def document(row: Row) -> Document:
        heading = row[TITLE]
        return Document(row[ID], joined(heading, row[TEXT]), "", LANGUAGE, heading or "")

    def stream() -> Iterator[Document | Rejection]:
        return documents_of(named[PASSAGES], json_rows(named[PASSAGES]), document, set())

    title = title or f"{name} (PolEval 2022)"
    return Judged(name, title, _judged(named, name), stream, [named[PASSAGES]])


def _judged(named: dict[str, File], name: str) -> Iterator[JudgedRow]:
    rows = csv_rows(named[PAIRS], (*PAIR_IDS, SCORE), "\t")
    judged = list(judgment_rows(named[PAIRS], rows, PAIR_IDS))
    valid = [row for row in judged if isinstance(row, JudgmentRow)]
    questions, passages = RowsById[str]("question"), RowsById[str]("passage")
    for table, file, ids in (
        (questions, named[QUESTIONS], {row.query for row in valid}),
        (passages, named[PASSAGES], {row.document for row in valid if row.relevance}),
    ):
        table.add(file, json_rows(file), ID, _text, ids)

    def pair_of(row: JudgmentRow, query: str, document: str) -> TextPair:
        return TextPair(row.pair_id, query, document, language=LANGUAGE, dataset=name)

    yield from judged_pairs(
        judged, questions.__getitem__, passages.__getitem__, pair_of, "", LANGUAGE
    )


def _text(row: Row) -> str:
    return clean(joined(row[TITLE], row[TEXT]), "text")


register(
    Format(
        name="poleval",
        description="PolEval 2022 (questions.jl, passages.jl, pairs.tsv)",
        order=21,
        fits=lambda path: path.is_dir() and len(named_files(path, FILES)) == len(FILES),
        read=read,
    )
)
