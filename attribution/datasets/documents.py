"""Documents without judgments: a table, a folder of tables, or a BEIR folder without `qrels`, whose
queries are read too if it has any.

A row is a document: its text in the column `text` (or `document`), joined to a `title` as in BEIR,
its id in `_id`, `id`, `doc_id` or `document_id`, and optionally its `language`. A row without an id
is named after its file and row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import beir, languages, tables
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.datasets.formats import Format, files_of, register
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.datasets.row import Row
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import (
    DataSet,
    Rejection,
    checked_id,
    collect,
    label,
)
from poslens.attribution.errors import UserError
from poslens.attribution.text import clean
from poslens.attribution.types import TextPair

TEXTS = ("text", "document")
IDS = ("_id", "id", "doc_id", "document_id")
_QUERY_COLUMNS = ("query", "question")
_WANTED = (*TEXTS, *IDS, "title", "language", *_QUERY_COLUMNS)


def documents(path: Path, name: str, title: str = "") -> Collection:
    """The documents at `path`, read row by row each time they are requested, and the queries of a
    BEIR folder, without judgments.

    Raises:
        UserError: there is no such file, or a file has neither of the columns text and document.
    """
    files = _files(path)
    if not files:
        raise UserError(
            f"{path.name} holds no documents: give a .jsonl, .csv, .tsv or .parquet file with the "
            "column text, or a BEIR folder."
        )

    def stream() -> Iterator[Document]:
        seen: set[int] = set()
        for file, language in files:
            # Rows of two files in a folder can have the same number.
            prefix = f"{file.name}/" if len(files) > 1 else ""
            for row in tables.rows(file, (_column(file) or TEXTS[0],), _WANTED):
                yield _document(file, row, prefix, language, seen)

    return Collection(
        name,
        title or name,
        tuple(_queries(path)),
        stream,
        tuple(p for f, _ in files if (p := _path(f)) is not None),
    )


def _queries(path: Path) -> Iterator[Query]:
    """The queries of BEIR folders, each id once; rows that are no queries are skipped."""
    seen: set[str] = set()
    for place in beir.folders(path) if path.is_dir() else ():
        language = languages.of_folder(_names(place))[0]
        for identity, text in beir.queries(place).items():
            try:
                checked_id(identity, "_id")
                cleaned = clean(text, "query").text
            except UserError:
                continue
            if identity not in seen:
                seen.add(identity)
                yield Query(identity, cleaned, "", language, {}, {}, None, None)


def read(path: Path, name: str, title: str = "") -> DataSet:
    """The documents as pairs with an empty query, for analyses of documents.

    Raises:
        UserError: as `documents`, or no row is a document.
    """
    found: list[TextPair | Rejection] = []
    corpus = documents(path, name, title)
    for document in corpus.documents(found.append):
        found.append(
            TextPair(
                document.document_id, "", document.text, language=document.language, dataset=name
            )
        )
    return collect(name, corpus.title, found)


def _files(path: Path) -> list[tuple[File, str | None]]:
    """The files with the language stated by their folder's name."""
    if path.is_dir() and (places := beir.folders(path)):
        return [
            (File(file.relative_to(path).as_posix(), file), languages.of_folder(_names(place))[0])
            for place in places
            for file in beir.table_files(place, "corpus")
        ]
    return [(file, None) for file in files_of(path, tables.SUFFIXES)]


def _names(folder: Path) -> tuple[str, ...]:
    return folder.parent.name, folder.name


def _path(file: File) -> Path | None:
    return file.content if isinstance(file.content, Path) else None


def _document(file: File, row: Row, prefix: str, language: str | None, seen: set[int]) -> Document:
    """A row as a document; without an id if it could not be read (see `Collection.documents`)."""
    nothing = Document("", "", file=file.name, row=row.number)
    if row.problem:
        return nothing
    cells = row.cells
    try:
        identity = next(
            (checked_id(cells[key], "id") for key in IDS if cells.get(key) not in (None, "")),
            f"{prefix}row {row.number}",
        )
        text = iso_639_3(label(cells.get("language"), "language")) or language
    except UserError:
        return nothing
    # A hash saves memory for millions of ids.
    if hash(identity) in seen:
        return nothing
    seen.add(hash(identity))
    title = cells.get("title")
    return Document(
        identity,
        _text(cells),
        "",
        text,
        file.name,
        row.number,
        title if isinstance(title, str) else "",
    )


def _text(cells: Mapping[str, Any]) -> str:
    """Title and text, joined by a space."""
    body = next((cells[key] for key in TEXTS if isinstance(cells.get(key), str)), "")
    parts = (part.strip() for part in (cells.get("title"), body) if isinstance(part, str))
    return " ".join(part for part in parts if part) if body.strip() else ""


def _column(file: File) -> str | None:
    """The column of texts; None for a file of queries or one without such a column."""
    for name in TEXTS:
        try:
            first = next(tables.rows(file, (name,), _WANTED), None)
        except UserError:
            continue
        # Parquet returns empty lists for missing columns.
        cells = {} if first is None else {k: v for k, v in first.cells.items() if v != []}
        if name in cells:
            return None if cells.keys() & _QUERY_COLUMNS else name
    return None


def _fits(path: Path) -> bool:
    if path.is_dir() and (places := beir.folders(path)):
        return not any(beir.judgement_files(place) for place in places)
    files = files_of(path, tables.SUFFIXES)
    return bool(files) and _column(files[0]) is not None


def _nothing_judged(path: Path, name: str, title: str = "") -> Collection:
    raise UserError(
        f"{title or name} has no relevance judgments, so its rankings can't be measured: choose "
        "Audit, Hubs or Why, or add judgments (for a BEIR folder, qrels/test.tsv with the header "
        "query-id, corpus-id, score)."
    )


register(
    Format(
        name="documents",
        description="a table with the column text and no queries (or corpus.jsonl without qrels)",
        order=25,
        fits=_fits,
        read=read,
        collection=_nothing_judged,
        documents=documents,
        judges=False,
    )
)
