"""Documents without judgments: a table, a folder of tables, or a BEIR folder without `qrels`, whose
queries are read too if it has any.

A row is a document: its text in the column `text` (or `document`), joined to a `title` as in BEIR,
its id in `_id`, `id`, `doc_id` or `document_id`, and optionally its `language`. A row without an id
is named after its file and row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from poslens.attribution.datasets import beir, languages, tables
from poslens.attribution.datasets.corpus import Collection, Document, Query, documents_of
from poslens.attribution.datasets.formats import Format, files_of, has_columns, register
from poslens.attribution.datasets.languages import as_language
from poslens.attribution.datasets.schema import Row, as_id, as_string, optional, required
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import DataSet, Rejection, collect
from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair

TEXT = required("text", as_string, "document")
ID = optional("_id", as_id, "id", "doc_id", "document_id")
TITLE, LANGUAGE = optional("title", as_string), optional("language", as_language)
_QUERY = optional("query", as_string, "question")


def documents(path: Path, name: str, title: str = "") -> Collection:
    """The documents at `path`, read row by row each time they are requested, and the queries of a
    BEIR folder, without judgments.

    Raises:
        UserError: there is no such file, or a file has neither of the columns text and document.
    """
    files = _files(path)
    if not files:
        raise UserError(
            f"{path.name} has no documents: use a .jsonl, .csv, .tsv or .parquet file with the "
            "column text, or a BEIR folder."
        )

    def stream() -> Iterator[Document | Rejection]:
        seen: set[int] = set()
        for file, language in files:
            # Rows of two files in a folder can have the same number.
            prefix = f"{file.name}/" if len(files) > 1 else ""
            rows = tables.rows(file, (TEXT, ID, TITLE, LANGUAGE))
            read = partial(_document, prefix=prefix, language=language)
            yield from documents_of(file, rows, read, seen)

    return Collection(
        name,
        title or name,
        tuple(_queries(path)),
        stream,
        tuple(file.content for file, _ in files if isinstance(file.content, Path)),
    )


def _queries(path: Path) -> Iterator[Query]:
    """The queries of BEIR folders, each id once; invalid rows are skipped."""
    seen: set[str] = set()
    for place in beir.folders(path) if path.is_dir() else ():
        language = languages.of_folder(place)[0]
        for query_id, text in beir.queries(place):
            if query_id not in seen:
                seen.add(query_id)
                yield Query(query_id, text, "", language)


def read(path: Path, name: str, title: str = "") -> DataSet:
    """The documents as pairs with an empty query, for analyses of documents.

    Raises:
        UserError: as `documents`, or no row is a document.
    """
    corpus = documents(path, name, title)
    rows = (
        row
        if isinstance(row, Rejection)
        else TextPair(row.document_id, "", row.text, language=row.language, dataset=name)
        for row in corpus.stream()
    )
    return collect(name, corpus.title, rows)


def _files(path: Path) -> list[tuple[File, str | None]]:
    """The files with the language stated by their folder's name."""
    if path.is_dir() and (places := beir.folders(path)):
        return [
            (file, languages.of_folder(place)[0])
            for place in places
            for file in beir.corpus_files(place, path)
        ]
    return [(file, None) for file in files_of(path, tables.SUFFIXES)]


def _document(row: Row, prefix: str, language: str | None) -> Document:
    title = row[TITLE] or ""
    return Document(
        row[ID] or f"{prefix}row {row.number}",
        beir.joined(title, row[TEXT]),
        "",
        row[LANGUAGE] or language,
        title,
    )


def _fits(path: Path) -> bool:
    if path.is_dir() and (places := beir.folders(path)):
        return not any(beir.judgment_files(place) for place in places)
    files = files_of(path, tables.SUFFIXES)
    return bool(files) and has_columns(files[0], [TEXT]) and not has_columns(files[0], [_QUERY])


register(
    Format(
        name="documents",
        description="a table with the column text and no queries (or corpus.jsonl without qrels)",
        order=25,
        fits=_fits,
        read=read,
        documents=documents,
        unjudged="has no relevance judgments, so its rankings can't be measured: choose Audit, "
        "Hubs or Why, or add judgments (for a BEIR folder, qrels/test.tsv with the header "
        "query-id, corpus-id, score).",
    )
)
