"""SQuAD (Rajpurkar et al. 2018) and sets in its layout: questions, and the spans that answer them.

One file or a folder of them, in SQuAD's own JSON or in the hub's Parquet. JSON (`train-v2.0.json`,
`dev-v2.0.json`): `data`, a list of articles with `title` and `paragraphs`; a paragraph has its
`context` and, in `qas`, questions with `id`, `question` and `answers` (`text`, `answer_start` in
characters). Parquet: a row for each question with `id`, `title`, `context`, `question` and
`answers`, whose `text` and `answer_start` are lists.

The first answer is the evidence. Questions that their passage does not answer (in SQuAD 2.0
`is_impossible`, whose `plausible_answers` answer another question) give no pair. The corpus
contains every passage once, and queries are grouped by the first character of their answer, both as
in SQuAD-PosQ (arXiv 2505.13950).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import tables
from poslens.attribution.datasets.formats import Format, files_below, has_columns, register
from poslens.attribution.datasets.judged_pairs import Judged, judged_passages
from poslens.attribution.datasets.schema import (
    Row,
    as_id,
    as_is,
    as_label,
    as_string,
    as_text,
    as_whole,
    optional,
    required,
)
from poslens.attribution.datasets.streams import File, beginning
from poslens.attribution.datasets.types import Groups, Judgment, Passages, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.types import EvidenceSpan, TextPair

SUFFIXES = (".json", ".json.gz")

_STARTS = (0, 100, 200, 300, 400, 500)
_END = 3120
GROUPS = Groups(
    "SQuAD-PosQ",
    "the answer's first character",
    (*(f"[{a},{b})" for a, b in pairwise(_STARTS)), f"[500,{_END}]"),
)
"""Groups of SQuAD-PosQ. Its own script counts an answer that begins at 100, 200, 300, 400 or 500 in
two of them; here each is in one."""


def _first_answer(value: Any, name: str) -> tuple[str, int]:
    """Text and first character of the first answer: of JSON's list, or of Parquet's two lists."""
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list):
            both = zip(texts[:1], starts[:1], strict=False)
            value = [{"text": text, "answer_start": start} for text, start in both]
    if not isinstance(value, list) or not value:
        raise UserError(_UNANSWERED)
    if not isinstance(value[0], Mapping):
        raise UserError("the answer is not an object with text and answer_start")
    answer = Row(0, value[0])
    return answer[_ANSWER], answer[_START]


_UNANSWERED = "its passage does not answer the question"
_ANSWER, _START = required("text", as_string, called="answer"), required("answer_start", as_whole)
ID, QUESTION, CONTEXT = (
    required("id", as_id),
    required("question", as_text),
    required("context", as_text),
)
TITLE, IMPOSSIBLE = optional("title", as_label), optional("is_impossible", as_is)
ANSWERS = optional("answers", _first_answer)
COLUMNS = (ID, CONTEXT, QUESTION, ANSWERS)
"""Columns of a Parquet file in this layout; `title` is optional."""


def judgments(
    files: Sequence[File], name: str, passages: Passages
) -> Iterator[Judgment | Rejection]:
    """Every question as a judgment of its passage, or as a rejection; row numbers count the
    questions of a file. Every passage is added to `passages`, even if its questions are rejected.

    Raises:
        UserError: a file cannot be read or is in another layout.
    """
    seen: set[str] = set()
    for file in files:
        for place, row in _of_parquet(file) if _is_parquet(file.name) else _of_json(file):
            with suppress(UserError):  # rejections of its questions report it
                passages.of(row[CONTEXT], f"{file.name}/{place}")
            if not row.number:
                continue
            try:
                yield _judgment(row, f"{file.name}/{place}", name, passages, seen)
            except UserError as error:
                yield Rejection(file.name, row.number, str(error))


def _of_json(file: File) -> Iterator[tuple[str, Row]]:
    """Every passage as row 0 and every question as a row with its passage, with the place of the
    passage in the file."""
    number = 0
    for a, article in enumerate(_list(tables.json_file(file), "data", file.name), start=1):
        for p, paragraph in enumerate(_list(article, "paragraphs", file.name), start=1):
            questions = _list(paragraph, "qas", file.name)
            passage = {"title": article.get("title"), "context": paragraph.get("context")}
            yield f"{a}/{p}", Row(0, passage)
            for question in questions:
                number += 1
                if isinstance(question, Mapping):
                    yield f"{a}/{p}", Row(number, {**question, **passage})
                else:
                    problem = "the question is not an object"
                    yield f"{a}/{p}", Row(number, problem=problem)


def _of_parquet(file: File) -> Iterator[tuple[str, Row]]:
    return ((str(row.number), row) for row in tables.rows(file, (*COLUMNS, TITLE)))


def _judgment(row: Row, place: str, dataset: str, passages: Passages, seen: set[str]) -> Judgment:
    name = row[ID]
    if name in seen:
        raise UserError(f"question {name} occurs twice")
    document_id, document = passages.of(row[CONTEXT], place)
    query, answer = row[QUESTION], row[ANSWERS]
    if answer is None or row[IMPOSSIBLE] is True:
        raise UserError(_UNANSWERED)
    evidence = _evidence(*answer, document)
    seen.add(name)
    pair = TextPair(name, query, document, evidence=evidence, domain=row[TITLE], dataset=dataset)
    return Judgment(pair, name, document_id, groups=_groups(evidence.start))


def _groups(start: int) -> tuple[str, ...]:
    """The group of an answer by its first character; empty past the last group."""
    at = sum(start >= first for first in _STARTS) - 1
    return (GROUPS.names[at],) if start <= _END else ()


def _evidence(answer: str, start: int, document: str) -> EvidenceSpan:
    if not answer.strip():
        raise UserError("the answer is empty")
    if start < 0 or document[start : start + len(answer)] != answer:
        raise UserError(f"the answer is not at character {start:,} of its passage")
    return EvidenceSpan(start, start + len(answer))


def _list(values: Any, name: str, file: str) -> list[Any]:
    listed = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(listed, list):
        raise UserError(
            f"{file} has an entry without a list of {name}: use a file in SQuAD's layout."
        )
    return listed


def _is_parquet(name: str) -> bool:
    return tables.suffix(name) == ".parquet"


def read(path: Path, name: str, title: str = "") -> Judged:
    """Every question, and all passages to search."""
    return judged_passages(judgments, _files(path), name, title or f"{name} (SQuAD)", GROUPS)


def _files(path: Path) -> list[File]:
    """The files in this layout at a path; empty if one of them is in another layout."""
    files = files_below(path, lambda name: name.endswith(SUFFIXES) or _is_parquet(name))
    # If there are both, they contain the same questions: the hub converts JSON to Parquet.
    chosen = [file for file in files if not _is_parquet(file.name)] or files
    return chosen if all(map(_fits, chosen)) else []


def _fits(file: File) -> bool:
    """Whether a file begins as SQuAD's do, or has its columns."""
    if _is_parquet(file.name):
        return has_columns(file, COLUMNS)
    head = beginning(file)
    return head.startswith("{") and '"paragraphs"' in head


register(
    Format(
        name="squad",
        description="SQuAD (.json with data, paragraphs and qas, or .parquet with id, context, "
        "question and answers)",
        order=45,
        fits=lambda path: bool(_files(path)),
        read=read,
    )
)
