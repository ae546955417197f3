"""The PosIR layout: `<root>/<language>/<domain>/{queries,corpus}.parquet` and `qrels/test.parquet`.

A language's folder is named by language and script as PosIR publishes it (`eng-Latn`), or by the
language alone (`eng`); pairs have the language.

queries: `_id, text, pos_char_span [start, end), pos_char_length, pos_token_length`; corpus:
`_id, text`; qrels: `query-id, corpus-id, score`. Spans count characters of the document.

In cross-lingual sets, queries in one language search a corpus in another. Translations of a domain
share ids, so a query keeps its text, and judgment, span and length are those of the corpus's
language. A column `query_type` of the queries is read if there is one.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import parquet
from poslens.attribution.datasets.corpus import Collection, Document, gather, grade
from poslens.attribution.datasets.formats import LANGUAGE, Format, register
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.datasets.row import Row
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import (
    DataSet,
    Judgement,
    LostDocument,
    Rejection,
    checked_id,
    collect,
    label,
    pairs_of,
)
from poslens.attribution.errors import UserError, printable
from poslens.attribution.text import clean
from poslens.attribution.types import EvidenceSpan, TextPair

_COLUMNS = {
    "queries.parquet": ("_id", "text", "pos_char_span", "pos_char_length", "pos_token_length"),
    "corpus.parquet": ("_id", "text"),
    "qrels/test.parquet": ("query-id", "corpus-id", "score"),
}
_PARTS = re.compile(rf"(?P<queries>{LANGUAGE})(?:-(?P<documents>{LANGUAGE}))?")
_OPTIONAL = ("query_type",)
_MAX_TOKENS = 10_000_000


def read(root: Path, name: str, title: str = "", queries: str = "", documents: str = "") -> DataSet:
    """One pair for each positive judgment: of every language and domain below `root`, only of the
    language `queries`, or of queries in one language and the corpus of another, `documents`, in the
    domains that both have.

    `language` of the pairs is the documents'. Languages are given with or without their script:
    `eng-Latn` or `eng`.

    Raises:
        UserError: no such layout or language below `root`, no domain in both languages, a file
            lacks a column, or no judgment of these languages makes a valid pair.
    """
    found = pairs_of(_judged(root, name, queries, documents)[1])
    if queries != documents:
        return collect(name, title or f"{name} (queries {queries}, documents {documents})", found)
    if queries:
        return collect(name, title or f"{name} ({queries})", found)
    pairs: list[TextPair] = []
    rejected: list[Rejection] = []
    for one in found:
        (pairs if isinstance(one, TextPair) else rejected).append(one)  # type: ignore[arg-type]
    return DataSet(name, title or name, tuple(pairs), tuple(rejected))


def _judged(
    root: Path, name: str, queries: str, documents: str
) -> tuple[list[Path], Iterator[Judgement | Rejection]]:
    """The domains' folders, and the judgments in them."""
    if queries != documents:
        asked = _language_folder(root, queries), _language_folder(root, documents)
        folders = _shared(root, *asked)
        return folders, _cross_lingual(root, folders, name, asked[0])
    folders = _folders(root, _language_folder(root, queries) if queries else "*")
    ids: set[str] = set()
    return folders, (one for folder in folders for one in _read_domain(folder, name, ids))


def _language_folder(root: Path, language: str) -> str:
    """The name of a language's folder; the language can have its script or not.

    Raises:
        UserError: no folder has this language, or several have.
    """
    names = sorted({p.parent.parent.name for p in root.glob("*/*/queries.parquet")})
    same = [name for name in names if iso_639_3(name) == iso_639_3(language)]
    found = [language] if language in names else same
    if len(found) != 1:
        lacks = f"is in several scripts in {root.name}" if found else f"is not in {root.name}"
        raise UserError(
            f"{language} {lacks}: choose one of its languages {', '.join(found or names)}."
        )
    return found[0]


def _folders(root: Path, language: str) -> list[Path]:
    """The domains' folders, starting with the language with the most domains, which most readers
    want."""
    pattern = language if language == "*" else glob.escape(language)
    folders = sorted(p.parent for p in root.glob(f"{pattern}/*/queries.parquet"))
    if not folders:
        raise UserError(
            f"{root.name} holds no data set in the PosIR layout: it needs "
            "<language>/<domain>/queries.parquet, corpus.parquet and qrels/test.parquet."
        )
    domains = Counter(folder.parent.name for folder in folders)
    folders.sort(key=lambda f: (-domains[f.parent.name], f.parent.name, f.name))
    _require_readable(folders)
    return folders


def _shared(root: Path, queries: str, documents: str) -> list[Path]:
    """The folders of `documents` whose domain is also in `queries`."""
    folders = sorted(p.parent for p in root.glob(f"{glob.escape(documents)}/*/queries.parquet"))
    shared = [f for f in folders if (root / queries / f.name / "queries.parquet").is_file()]
    if not shared:
        raise UserError(f"{root.name} has no domain in both {queries} and {documents}.")
    _require_readable([f for s in shared for f in (s, root / queries / s.name)])
    return shared


def _cross_lingual(
    root: Path, folders: Sequence[Path], name: str, queries: str
) -> Iterator[Judgement | Rejection]:
    ids: set[str] = set()
    for folder in folders:
        asked, damaged = _by_id(root / queries / folder.name, "queries.parquet")
        yield from damaged
        texts = {query_id: cells["text"] for query_id, cells in asked.items()}
        yield from _read_domain(folder, name, ids, (queries, texts))


def collection(
    root: Path, name: str, title: str = "", queries: str = "", documents: str = ""
) -> Collection:
    """Queries, judgments and the whole corpus of each domain, with documents read on demand;
    languages as in `read`.

    Raises:
        UserError: as `read`.
    """
    folders, found = _judged(root, name, queries, documents)

    def stream() -> Iterator[Document]:
        for folder in folders:
            file, columns = _file(folder, "corpus.parquet"), _COLUMNS["corpus.parquet"]
            part, language = f"{folder.parent.name}/{folder.name}", iso_639_3(folder.parent.name)
            for row in parquet.rows_in_process(file, columns, columns, None):
                known, text = row.cells.get("_id"), row.cells.get("text")
                if row.problem or isinstance(known, bool) or not isinstance(known, str | int):
                    known = ""
                read = text if isinstance(text, str) else ""
                yield Document(str(known), read, part, language, file.name, row.number)

    files = [folder / "corpus.parquet" for folder in folders]
    return gather(name, title or name, found, stream, files)


def _require_readable(folders: Sequence[Path]) -> None:
    parquet.require_readable(
        [
            (_file(folder, name), (*columns, *_OPTIONAL))
            for folder in folders
            for name, columns in _COLUMNS.items()
            if (folder / name).is_file()
        ]
    )


def _file(folder: Path, name: str) -> File:
    return File(f"{folder.parent.name}/{folder.name}/{name}", folder / name)


def _rows(folder: Path, name: str) -> list[Row]:
    file = _file(folder, name)
    if not (folder / name).is_file():
        raise UserError(f"{file.name} is missing: a domain needs {', '.join(_COLUMNS)}.")
    columns = _COLUMNS[name]
    return list(parquet.rows_in_process(file, columns, (*columns, *_OPTIONAL), None))


def _by_id(folder: Path, name: str) -> tuple[dict[str, Mapping[str, Any]], list[Rejection]]:
    """Rows by id, and rows that are damaged or have no usable id. These count as missing, so
    judgments of them are rejected too."""
    where = f"{printable(folder.parent.name)}/{printable(folder.name)}/{name}"
    by_id: dict[str, Mapping[str, Any]] = {}
    damaged = []
    for row in _rows(folder, name):
        try:
            if row.problem:
                raise UserError(row.problem)
            by_id[checked_id(row.cells.get("_id"), "_id")] = row.cells
        except UserError as error:
            damaged.append(Rejection(where, row.number, str(error)))
    return by_id, damaged


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"the {what} has no text")
    return clean(value, what).text


def _span(value: object, document: str) -> EvidenceSpan:
    """Two whole numbers within the document; they can be stored as floats."""
    whole = [_whole(number) for number in value] if isinstance(value, list) else []
    span = [number for number in whole if number is not None]
    if len(span) != 2 or len(whole) != 2 or not 0 <= span[0] < span[1] <= len(document):
        raise UserError(f"span {value} lies outside the document's {len(document)} characters")
    return EvidenceSpan(*span)


def _tokens(value: object) -> int | None:
    # A column of numbers with gaps is read as floats.
    if value is None or value != value:
        return None
    found = _whole(value)
    if found is None or not 0 <= found <= _MAX_TOKENS:
        raise UserError(f"pos_token_length {str(value)[:40]!a} is no number of tokens")
    return found


def _whole(value: object) -> int | None:
    """A whole number, also if it is stored as a float; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_domain(
    folder: Path,
    dataset: str,
    ids: set[str],
    translated: tuple[str, Mapping[str, Any]] | None = None,
) -> Iterator[Judgement | Rejection]:
    """`translated`: another language's folder and its queries' texts by id, which replace these."""
    place, domain = printable(folder.parent.name), printable(folder.name)
    language = iso_639_3(place)
    documents, damaged_documents = _by_id(folder, "corpus.parquet")
    queries, damaged_queries = _by_id(folder, "queries.parquet")
    yield from (*damaged_documents, *damaged_queries)
    where, part = f"{place}/{domain}/qrels/test.parquet", f"{place}/{domain}"
    asked_in = iso_639_3(translated[0]) if translated else language
    taken: set[tuple[str, str]] = set()
    for row in _rows(folder, "qrels/test.parquet"):
        about = ""
        try:
            if row.problem:
                raise UserError(row.problem)
            query_id = checked_id(row.cells["query-id"], "query-id")
            document_id = checked_id(row.cells["corpus-id"], "corpus-id")
            relevance = grade(row.cells["score"])
            if not relevance:
                raise UserError(f"{query_id}: {document_id} is judged not relevant")
            query, document = queries.get(query_id), documents.get(document_id)
            if query is None:
                raise UserError(f"query {query_id} does not exist")
            if (query_id, document_id) in taken:
                raise UserError(f"{query_id} with {document_id} is there twice")
            if translated is not None and query_id not in translated[1]:
                raise UserError(f"query {query_id} does not exist in {translated[0]}")
            about = f"{query_id}: "
            text = _text(query["text"] if translated is None else translated[1][query_id], "query")
            if document is None:
                yield LostDocument(
                    where,
                    row.number,
                    f"document {document_id} does not exist",
                    query_id,
                    text,
                    document_id,
                    relevance,
                    part,
                    asked_in,
                )
                continue
            # Ids are unique within a file; two domains, or a query's two documents, can share them.
            pair_id = next(
                candidate
                for candidate in (
                    query_id,
                    f"{query_id}/{document_id}",
                    f"{part}/{query_id}/{document_id}",
                )
                if candidate not in ids
            )
            read = _text(document["text"], "document")
            pair = TextPair(
                pair_id=pair_id,
                query=text,
                document=read,
                evidence=_span(query["pos_char_span"], read),
                language=language,
                domain=domain,
                dataset=dataset,
                document_tokens=_tokens(query["pos_token_length"]),
                query_type=label(query.get("query_type"), "query_type"),
            )
        except UserError as error:
            yield Rejection(where, row.number, f"{about}{error}")
            continue
        taken.add((query_id, document_id))
        ids.add(pair_id)
        yield Judgement(pair, query_id, document_id, relevance, part, asked_in)


def _languages(variant: str) -> tuple[str, str]:
    """The languages of queries and documents in a variant; both empty if it is empty, equal if it
    names one."""
    match = _PARTS.fullmatch(variant)
    if match is None:
        return "", ""
    return match["queries"], match["documents"] or match["queries"]


register(
    Format(
        name="posir",
        description="PosIR (<language>/<domain>/queries.parquet)",
        order=10,
        fits=lambda path: path.is_dir() and any(path.glob("*/*/queries.parquet")),
        read=lambda path, name, title, variant: read(path, name, title, *_languages(variant)),
        collection=lambda path, name, title, variant: collection(
            path, name, title, *_languages(variant)
        ),
        has_variants=True,
    )
)
