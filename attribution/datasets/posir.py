"""The PosIR format: `<root>/<language>/<domain>/{queries,corpus}.parquet` and `qrels/test.parquet`.

A language's folder is named by language and script as PosIR publishes it (`eng-Latn`), or by the
language alone (`eng`); a pair's language has no script.

queries: `_id, text, pos_char_span [start, end), pos_char_length, pos_token_length`; corpus:
`_id, text`; qrels: `query-id, corpus-id, score`. Spans count characters of the document.

In cross-lingual sets, queries in one language search a corpus in another. Translations of a domain
share ids, so the query's text comes from the one language, and judgment, span and length from the
language of the corpus. A column `query_type` of the queries is read if there is one.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import judged_pairs, parquet
from poslens.attribution.datasets.corpus import Document, documents_of
from poslens.attribution.datasets.formats import LANGUAGE, Format, register
from poslens.attribution.datasets.judged_pairs import Judged, JudgmentRow, RowsById, judgment_rows
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.datasets.schema import (
    Column,
    Row,
    as_id,
    as_label,
    as_string,
    as_text,
    as_whole,
    names_of,
    optional,
    required,
)
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import JudgedRow, Rejection
from poslens.attribution.errors import UserError, printable
from poslens.attribution.types import EvidenceSpan, TextPair

_MAX_TOKENS = 10_000_000


def _span(value: Any, name: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"the {name} is not a list of two whole numbers")
    return as_whole(value[0], name), as_whole(value[1], name)


def _tokens(value: Any, name: str) -> int:
    number = as_whole(value, name)
    if not 0 <= number <= _MAX_TOKENS:
        raise UserError(f"the {name} is {number:,}, not a number of tokens")
    return number


ID, TEXT = required("_id", as_id), required("text", as_string)
QUERY, DOCUMENT = (required("text", as_text, called=side) for side in ("query", "document"))
SPAN, TOKENS = required("pos_char_span", _span), optional("pos_token_length", _tokens)
QUERY_TYPE = optional("query_type", as_label)
_COLUMNS: dict[str, tuple[Column[Any], ...]] = {
    "queries.parquet": (ID, QUERY, SPAN, TOKENS, QUERY_TYPE),
    "corpus.parquet": (ID, DOCUMENT),
    "qrels/test.parquet": judged_pairs.COLUMNS,
}
_PARTS = re.compile(rf"(?P<queries>{LANGUAGE})(?:-(?P<documents>{LANGUAGE}))?")


def read(root: Path, name: str, title: str = "", variant: str = "") -> Judged:
    """The positive judgments of each domain: of every language and domain below `root`, only of one
    language, or of queries in one language and the corpus of another, in the domains that both
    have. Documents are read on demand.

    `language` of the pairs is the documents'. A variant is a language or two (see `split_variant`
    of `formats`), with or without their script: `eng-Latn` or `eng`.

    Raises:
        UserError: no such layout or language below `root`, or no domain in both languages.
    """
    queries, documents = _languages(variant)
    asked_in = ""
    if queries != documents:
        title = title or f"{name} (queries {queries}, documents {documents})"
        asked_in = _language_folder(root, queries)
        folders = _shared(root, asked_in, _language_folder(root, documents))
    else:
        title = title or (f"{name} ({queries})" if queries else name)
        folders = _folders(root, _language_folder(root, queries) if queries else "*")
    ids: set[str] = set()
    rows = (row for folder in folders for row in _read_domain(folder, name, ids, asked_in))

    def stream() -> Iterator[Document | Rejection]:
        for folder in folders:
            read = partial(
                _document,
                part=f"{folder.parent.name}/{folder.name}",
                language=iso_639_3(folder.parent.name),
            )
            yield from documents_of(*_rows(folder, "corpus.parquet"), read, set())

    return Judged(name, title, rows, stream, [_file(f, "corpus.parquet") for f in folders])


def _language_folder(root: Path, language: str) -> str:
    """The name of a language's folder; the language can have its script or not.

    Raises:
        UserError: no folder has this language, or several have.
    """
    names = sorted({p.parent.parent.name for p in root.glob("*/*/queries.parquet")})
    same = [name for name in names if iso_639_3(name) == iso_639_3(language)]
    matches = [language] if language in names else same
    if len(matches) != 1:
        lacks = f"is in several scripts in {root.name}" if matches else f"is not in {root.name}"
        raise UserError(
            f"{language} {lacks}: choose one of its languages {', '.join(matches or names)}."
        )
    return matches[0]


def _folders(root: Path, language: str) -> list[Path]:
    """The domains' folders, starting with the language with the most domains, which most readers
    want."""
    pattern = language if language == "*" else glob.escape(language)
    folders = sorted(p.parent for p in root.glob(f"{pattern}/*/queries.parquet"))
    if not folders:
        raise UserError(
            f"{root.name} has no data set in the PosIR format: it needs "
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


def _document(row: Row, part: str, language: str | None) -> Document:
    return Document(row[ID], row[TEXT], part, language)


def _require_readable(folders: Sequence[Path]) -> None:
    parquet.require_readable(
        [
            (_file(folder, name), names_of(columns))
            for folder in folders
            for name, columns in _COLUMNS.items()
            if (folder / name).is_file()
        ]
    )


def _file(folder: Path, name: str) -> File:
    return File(f"{folder.parent.name}/{folder.name}/{name}", folder / name)


def _rows(folder: Path, name: str) -> tuple[File, Iterator[Row]]:
    file = _file(folder, name)
    if not (folder / name).is_file():
        raise UserError(f"{file.name} is missing: a domain needs {', '.join(_COLUMNS)}.")
    return file, parquet.rows(file, _COLUMNS[name], None)


def _table(folder: Path, name: str, what: str) -> RowsById[Row]:
    table: RowsById[Row] = RowsById(what)
    table.add(*_rows(folder, name), ID, lambda row: row)
    return table


def _evidence(span: tuple[int, int], document: str) -> EvidenceSpan:
    if not 0 <= span[0] < span[1] <= len(document):
        raise UserError(f"span {list(span)} is outside the document's {len(document)} characters")
    return EvidenceSpan(*span)


def _read_domain(folder: Path, dataset: str, ids: set[str], asked_in: str) -> Iterator[JudgedRow]:
    """The judgments of a domain. `asked_in` is the name of another language's folder, if the texts
    of its queries replace those of this folder."""
    place, domain = printable(folder.parent.name), printable(folder.name)
    part, language = f"{place}/{domain}", iso_639_3(place)
    translated = None
    if asked_in:
        there = folder.parent.with_name(asked_in) / folder.name
        translated = _table(there, "queries.parquet", f"{asked_in} query")
        yield from translated.without_id
    documents = _table(folder, "corpus.parquet", "document")
    queries = _table(folder, "queries.parquet", "query")
    yield from (*documents.without_id, *queries.without_id)

    def query_of(name: str) -> str:
        row = queries[name]
        return (row if translated is None else translated[name])[QUERY]

    def pair_of(row: JudgmentRow, query: str, document: str) -> TextPair:
        # Ids are unique within a file; two domains, or a query's two documents, can share them.
        names = (row.query, row.pair_id, f"{part}/{row.pair_id}")
        about = queries[row.query]
        pair = TextPair(
            pair_id=next(name for name in names if name not in ids),
            query=query,
            document=document,
            evidence=_evidence(about[SPAN], document),
            language=language,
            domain=domain,
            dataset=dataset,
            document_tokens=about[TOKENS],
            query_type=about[QUERY_TYPE],
            query_language=iso_639_3(asked_in) if asked_in else None,
        )
        ids.add(pair.pair_id)
        return pair

    yield from judged_pairs.judged_pairs(
        judgment_rows(*_rows(folder, "qrels/test.parquet")),
        query_of,
        lambda name: documents[name][DOCUMENT],
        pair_of,
        part,
        iso_639_3(asked_in or place),
    )


def _languages(variant: str) -> tuple[str, str]:
    """The languages of queries and documents in a variant; both empty if it is empty, equal if it
    names one."""
    match = _PARTS.fullmatch(variant)
    return (match["queries"], match["documents"] or match["queries"]) if match else ("", "")


register(
    Format(
        name="posir",
        description="PosIR (<language>/<domain>/queries.parquet)",
        order=10,
        fits=lambda path: path.is_dir() and any(path.glob("*/*/queries.parquet")),
        read=read,
        has_variants=True,
    )
)
