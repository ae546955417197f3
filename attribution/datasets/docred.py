"""Re-DocRED (Tan et al. 2022) and DocRED (Yao et al. 2019), as the seven bias tests of ColDeR.

A JSON file, or a folder of them, with a list of documents: `title`, `sents` (sentences as lists of
tokens), `vertexSet` (entities as lists of mentions with `sent_id`, `pos` (first token and the one
after the last) and `type`) and `labels` (facts with the entities' numbers `h` and `t`, the Wikidata
property `r`, and `evidence`, the numbers of sentences). Pairs have the ids and domains of ColDeR's
files; `docred_documents` builds the documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import colder, tables
from poslens.attribution.datasets.docred_documents import (
    AnnotatedDocument,
    AnnotatedFact,
    Mention,
    document_pairs,
)
from poslens.attribution.datasets.formats import Format, files_below, register
from poslens.attribution.datasets.schema import (
    Row,
    as_label,
    as_string,
    as_text,
    as_whole,
    optional,
    required,
)
from poslens.attribution.datasets.streams import File, beginning
from poslens.attribution.datasets.types import DataSet, Rejection, collect
from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair

NO_FACT = (
    "no fact has a known relation, one answer, and one sentence of evidence that names both of its "
    "entities, next to other sentences"
)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"the {name} is not a list")
    return value


def _objects(value: Any, name: str) -> list[Row]:
    """A list of objects as rows, numbered from 0."""
    listed = _list(value, name)
    if not all(isinstance(each, Mapping) for each in listed):
        raise UserError(f"the {name} has a value that is not an object")
    return [Row(number, each) for number, each in enumerate(listed)]


def _sentences(value: Any, name: str) -> tuple[tuple[str, ...], ...]:
    rows = [_list(sentence, name) for sentence in _list(value, name)]
    return tuple(tuple(as_string(token, "token") for token in row) for row in rows)


def _numbers(value: Any, name: str) -> tuple[int, ...]:
    return tuple(as_whole(number, name) for number in _list(value, name))


TITLE, SENTENCES = required("title", as_text), required("sents", _sentences)
ENTITIES, FACTS = required("vertexSet", _list), optional("labels", _objects)
SENTENCE, TOKENS = required("sent_id", as_whole), required("pos", _numbers)
TYPE = optional("type", as_label)
HEAD, TAIL = required("h", as_whole), required("t", as_whole)
RELATION, EVIDENCE = required("r", as_label), optional("evidence", _numbers)


def _document(row: Row) -> AnnotatedDocument:
    sentences, entities = row[SENTENCES], row[ENTITIES]
    mentions = [
        tuple(_mention(mention, sentences) for mention in _objects(entity, "entity"))
        for entity in entities
    ]
    facts = [_fact(fact) for fact in row[FACTS] or ()]
    for fact in facts:
        within = all(0 <= entity < len(mentions) for entity in (fact.head, fact.tail))
        if not within or not all(0 <= place < len(sentences) for place in fact.evidence):
            raise UserError("a fact names an entity or a sentence that the document lacks")
    if not all(mentions):
        raise UserError("an entity has no mention")
    return AnnotatedDocument(row[TITLE], sentences, tuple(mentions), tuple(facts))


def _fact(row: Row) -> AnnotatedFact:
    evidence = row[EVIDENCE]
    return AnnotatedFact(row[HEAD], row[TAIL], row[RELATION], evidence or ())


def _mention(row: Row, sentences: tuple[tuple[str, ...], ...]) -> Mention:
    sentence, tokens = row[SENTENCE], row[TOKENS]
    start, end = tokens if len(tokens) == 2 else (0, 0)
    if not 0 <= sentence < len(sentences) or not 0 <= start < end <= len(sentences[sentence]):
        raise UserError("a mention is not at tokens of a sentence")
    return Mention(sentence, start, end, row[TYPE] or "")


def read(files: list[File], name: str, title: str = "") -> DataSet:
    """Read files of documents as pairs of the bias tests. Documents that give no pair are rejected;
    row numbers count the documents of a file.

    Raises:
        UserError: a file cannot be read, or no document gives a pair.
    """

    def pairs() -> Iterator[TextPair | Rejection]:
        ids: set[str] = set()
        for file in files:
            documents: list[AnnotatedDocument] = []
            rows: list[int] = []
            for number, each in enumerate(_list(tables.json_file(file), "file"), start=1):
                try:
                    documents.append(_document(_row(number, each)))
                    rows.append(number)
                except UserError as error:
                    yield Rejection(file.name, number, str(error))
            for index, number in enumerate(rows):
                built = document_pairs(documents, index)
                if not built:
                    yield Rejection(file.name, number, NO_FACT)
                for test, each in built.items():
                    for cells in each:
                        yield from colder.both_pairs(Row(number, cells), test, name, ids)

    return collect(name, title or f"{name} (Re-DocRED)", pairs())


def _row(number: int, value: Any) -> Row:
    if isinstance(value, Mapping):
        return Row(number, value)
    return Row(number, problem="the document is not an object")


def _files(path: Path) -> list[File]:
    """The files in this layout at a path; none if one of them is in another layout."""
    files = files_below(path, lambda name: name.endswith((".json", ".json.gz")))
    return files if all(map(_fits, files)) else []


def _fits(file: File) -> bool:
    """Whether a file begins with a list of documents with entities."""
    head = beginning(file)
    return head.startswith("[") and '"vertexSet"' in head


register(
    Format(
        name="docred",
        description="Re-DocRED (.json, documents with sents, vertexSet and labels)",
        order=41,
        fits=lambda path: bool(_files(path)),
        read=lambda path, name, title: read(_files(path), name, title),
        unjudged=colder.UNJUDGED,
    )
)
