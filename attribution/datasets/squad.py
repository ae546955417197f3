"""SQuAD (Rajpurkar et al. 2018) and sets in its layout: questions, and where passages answer them.

One file or a folder of them, in SQuAD's own JSON or as the hub has it. JSON (`train-v2.0.json`,
`dev-v2.0.json`): `data`, a list of articles with `title` and `paragraphs`; a paragraph has its
`context` and, in `qas`, questions with `id`, `question` and `answers` (`text`, `answer_start` in
characters). Parquet: a row for each question with `id`, `title`, `context`, `question` and
`answers`, whose `text` and `answer_start` are lists.

The first answer is the evidence. Questions that their passage does not answer (in SQuAD 2.0
`is_impossible`, whose `plausible_answers` answer another question) make no pair. The
corpus to search are all passages, each text once, as SQuAD-PosQ has it (arXiv 2505.13950); queries
are grouped by the first character of their answer, as there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import parquet, tables
from poslens.attribution.datasets.formats import files_below, register
from poslens.attribution.datasets.passages import PassageReader
from poslens.attribution.datasets.streams import MEGABYTE, File, open_bytes, open_text
from poslens.attribution.datasets.types import (
    Groups,
    Judgement,
    Passages,
    Rejection,
    checked_id,
    label,
)
from poslens.attribution.errors import UserError
from poslens.attribution.text import clean
from poslens.attribution.types import EvidenceSpan, TextPair

SUFFIXES = (".json", ".json.gz")
LIMIT = 500 * MEGABYTE
"""Largest JSON file, unpacked: it is held in memory as a whole. SQuAD 2.0's own has 42 MB."""

COLUMNS = ("id", "context", "question", "answers")
"""What a Parquet file in this layout has; `title` may be there too."""

_STARTS = (0, 100, 200, 300, 400, 500)
_END = 3120
GROUPS = Groups(
    "squad-posq",
    "SQuAD-PosQ",
    "the answer's first character",
    (*(f"[{a},{b})" for a, b in pairwise(_STARTS)), f"[500,{_END}]"),
)
"""Groups of SQuAD-PosQ. Its own script counts an answer that begins at 100, 200, 300, 400 or 500 in
two of them; here each is in one."""

_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class _Entry:
    """A passage, or with `number` (from 1 in its file) a question about it, as the file has them;
    `place` names the passage, and `problem` says why a row could not be read."""

    file: str
    place: str
    title: Any = None
    context: Any = None
    number: int = 0
    question: Any = None
    problem: str = ""


def judgements(
    files: Sequence[File], name: str, passages: Passages
) -> Iterator[Judgement | Rejection]:
    """Every question as a judgment of its passage, or as a rejection; row numbers count the
    questions of a file. `passages` takes up every passage, also those that no question is left of.

    Raises:
        UserError: a file cannot be read or is in no such layout.
    """
    seen: set[str] = set()
    for entry in _entries(files):
        if isinstance(entry.context, str):
            with suppress(UserError):  # its questions say what is wrong with it
                passages.of(clean(entry.context, "context").text, entry.place)
        if not entry.number:
            continue
        try:
            yield _judgement(entry, name, passages, seen)
        except UserError as error:
            yield Rejection(entry.file, entry.number, str(error))


READER = PassageReader(judgements, "SQuAD", GROUPS)


def _entries(files: Sequence[File]) -> Iterator[_Entry]:
    for file in files:
        yield from _of_parquet(file) if _is_parquet(file.name) else _of_json(file)


def _of_json(file: File) -> Iterator[_Entry]:
    number = 0
    for a, article in enumerate(_list(_loaded(file), "data", file.name), start=1):
        for p, paragraph in enumerate(_list(article, "paragraphs", file.name), start=1):
            title = article.get("title")
            place = f"{file.name}/{a}/{p}"
            context = paragraph.get("context") if isinstance(paragraph, Mapping) else None
            yield _Entry(file.name, place, title, context)
            for question in _list(paragraph, "qas", file.name):
                number += 1
                yield _Entry(file.name, place, title, context, number, question)


def _of_parquet(file: File) -> Iterator[_Entry]:
    for row in tables.rows(file, COLUMNS, ("title",)):
        place, cells = f"{file.name}/{row.number}", row.cells
        question = {
            "id": cells.get("id"),
            "question": cells.get("question"),
            "answers": _answers(cells.get("answers")),
        }
        yield _Entry(
            file.name,
            place,
            cells.get("title"),
            cells.get("context"),
            row.number,
            question,
            row.problem,
        )


def _answers(value: Any) -> Any:
    """Lists of texts and of starts as the list of answers that JSON has; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    texts, starts = value.get("text"), value.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list):
        return value
    both = zip(texts, starts, strict=False)
    return [{"text": text, "answer_start": start} for text, start in both]


def _judgement(entry: _Entry, dataset: str, passages: Passages, seen: set[str]) -> Judgement:
    if entry.problem:
        raise UserError(entry.problem)
    question = entry.question
    if not isinstance(question, Mapping):
        raise UserError("the question is no object with named fields")
    identity = checked_id(question.get("id"), "id")
    if identity in seen:
        raise UserError(f"question {identity} is there twice")
    context = clean(_text({"context": entry.context}, "context"), "context").text
    document_id, document = passages.of(context, entry.place)
    query = clean(_text(question, "question"), "question").text
    answers = question.get("answers")
    if not isinstance(answers, list) or not answers or question.get("is_impossible") is True:
        raise UserError("its passage does not answer the question")
    evidence = _evidence(answers[0], document)
    seen.add(identity)
    pair = TextPair(
        identity,
        query,
        document,
        evidence=evidence,
        domain=label(entry.title, "title"),
        dataset=dataset,
    )
    return Judgement(pair, identity, document_id, groups=_groups(evidence.start))


def _groups(start: int) -> tuple[str, ...]:
    """The group of an answer by its first character; none behind SQuAD's longest passage."""
    at = sum(start >= one for one in _STARTS) - 1
    return (GROUPS.names[at],) if start <= _END else ()


def _evidence(answer: Any, document: str) -> EvidenceSpan:
    if not isinstance(answer, Mapping):
        raise UserError("the answer is no object with text and answer_start")
    text, start = _text(answer, "text"), answer.get("answer_start")
    if isinstance(start, bool) or not isinstance(start, int):
        raise UserError("answer_start is no whole number")
    if not text.strip():
        raise UserError("the answer is empty")
    if start < 0 or document[start : start + len(text)] != text:
        raise UserError(f"the answer is not at character {start:,} of its passage")
    return EvidenceSpan(start, start + len(text))


def _text(values: Any, name: str) -> str:
    value = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(value, str):
        raise UserError(f"{name} is missing or no text")
    return value


def _list(values: Any, name: str, file: str) -> list[Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(found, list):
        raise UserError(
            f"{file} has an entry without a list of {name}: give a file in SQuAD's layout."
        )
    return found


def _loaded(file: File) -> Any:
    with open_bytes(file, LIMIT) as stream:
        data = stream.read()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file.name} is damaged or no JSON: copy or fetch it again.") from error


def _is_parquet(name: str) -> bool:
    return tables.suffix(name) == ".parquet"


def _files(path: Path) -> list[File]:
    """The files in this layout at a path; none where one of that kind is in another layout."""
    files = files_below(path, lambda name: name.endswith(SUFFIXES) or _is_parquet(name))
    # JSON next to Parquet has the same questions, in the hub's own conversion or the original.
    chosen = [file for file in files if not _is_parquet(file.name)] or files
    return chosen if all(map(_fits, chosen)) else []


def _fits(file: File) -> bool:
    """Whether a file begins as SQuAD's do, or has its columns."""
    if _is_parquet(file.name):
        return set(COLUMNS) <= set(parquet.columns_of(file))
    try:
        with open_text(file) as text:
            head = text.read(_HEAD)
    except (UserError, OSError, UnicodeError):
        return False
    return head.lstrip().startswith("{") and '"paragraphs"' in head


register(
    READER.format(
        "squad",
        "SQuAD (.json with data, paragraphs and qas, or .parquet with id, context, question and "
        "answers)",
        45,
        _files,
    )
)
