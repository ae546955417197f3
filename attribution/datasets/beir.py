"""The BEIR layout (Thakur et al. 2021), also used by BEIR-PL.

`corpus.jsonl` (_id, title, text), `queries.jsonl` (_id, text) and `qrels/<split>.tsv` (query-id,
corpus-id, score, with that header); each can end in `.gz`. As on the hub, texts can also be
`corpus.parquet` or `corpus/*.parquet`, and judgments `.jsonl` or `.parquet`, in one file or in
parts, in `qrels/`, `data/` or the folder of the texts. Judgments and queries are read first, then
the corpus in one pass that stores only the documents of pairs, so a corpus of millions of documents
is never in memory. Title and text are joined by one space, as BEIR and sentence-transformers do for
models that take one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from poslens.attribution.datasets import languages
from poslens.attribution.datasets.corpus import Document, documents_of, key_of
from poslens.attribution.datasets.formats import Format, register
from poslens.attribution.datasets.judged_pairs import (
    COLUMNS,
    Judged,
    JudgmentRow,
    RowsById,
    judged_pairs,
    judgment_rows,
)
from poslens.attribution.datasets.schema import (
    NOT_UTF8,
    Row,
    accepted,
    as_id,
    as_is,
    as_string,
    column_name,
    names_of,
    optional,
    required,
)
from poslens.attribution.datasets.streams import File, has_foreign_bytes, json_lines, open_text
from poslens.attribution.datasets.tables import json_row, rows, suffix
from poslens.attribution.datasets.types import JudgedRow, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.attribution.text import clean
from poslens.attribution.types import TextPair

_SPLITS = ("test", "dev", "validation", "val", "train")
JUDGMENTS = (".tsv", ".jsonl", ".parquet")
"""Formats of judgments, the paper's first."""

KEEPS_OWN_IDS = "keeps-own-ids"
"""A file of this name means that a query can find the document with its own id, because ids of
queries and documents are unrelated, as in most data sets that are not BEIR's own."""

ID, TITLE, TEXT = required("_id", as_id), optional("title", as_string), required("text", as_string)
_SPAN = optional("pos_char_span", as_is)
_PART = re.compile(r"-\d{5}-of-\d{5}$")
# Lines that begin with a plain id that no pair needs are skipped without parsing.
_PLAIN_ID = re.compile(r'\s*\{\s*"_id"\s*:\s*"([^"\\]*)"\s*[,}]')


def folders(root: Path) -> list[Path]:
    """The folders with a corpus, `root` itself or up to two levels below it."""
    places = {path.parent for d in ("", "*/", "*/*/") for path in root.glob(f"{d}corpus*")}
    return sorted(place for place in places if table_files(place, "corpus"))


def table_files(folder: Path, stem: str) -> list[Path]:
    """The files of one table: lines of JSON, one Parquet file, or a folder of its parts."""
    for name in (f"{stem}.jsonl", f"{stem}.jsonl.gz", f"{stem}.parquet"):
        if (folder / name).is_file():
            return [folder / name]
    return sorted((folder / stem).glob("*.parquet"))


def corpus_files(folder: Path, root: Path) -> list[File]:
    """The files of a folder's corpus, named by their path below `root`."""
    return [File(p.relative_to(root).as_posix(), p) for p in table_files(folder, "corpus")]


def read(path: Path, name: str, title: str = "") -> Judged:
    """The judgments above zero of each folder, of the test split, or else dev, or else train, and
    the queries that have no others; documents are read row by row on demand.

    `path` is the data set's folder, a folder of several, or the qrels file of a split. As in BEIR,
    a query does not find the document with its own id (ArguAna's arguments and Quora's questions
    are both queries and documents), and judged documents that the corpus lacks count as not found.

    Raises:
        UserError: a file is missing.
    """
    path, chosen = _chosen(path)

    def stream() -> Iterator[Document | Rejection]:
        for folder, _ in chosen:
            language, _ = languages.of_folder(folder)
            read = partial(_document, part=_part(folder, path), language=language)
            seen: set[int] = set()
            for file in corpus_files(folder, path):
                yield from documents_of(file, _rows(file, None), read, seen)

    def all_queries() -> Iterator[tuple[str, str]]:
        for folder, _ in chosen:
            for query_id, text in queries(folder):
                yield key_of(_part(folder, path), query_id), text

    splits = sorted({_stem(files[0]) for _, files in chosen})
    ids: set[str] = set()
    rows = (row for folder, qrels in chosen for row in _read_folder(folder, qrels, path, name, ids))
    return Judged(
        name,
        title or f"{name} (BEIR, {', '.join(splits)})",
        rows,
        stream,
        [file for folder, _ in chosen for file in corpus_files(folder, path)],
        skips_own_id=not all((folder / KEEPS_OWN_IDS).is_file() for folder, _ in chosen),
        unjudged=all_queries,
    )


def _part(folder: Path, root: Path) -> str:
    return "/".join(folder.relative_to(root).parts)


def _chosen(path: Path) -> tuple[Path, list[tuple[Path, list[Path]]]]:
    """The root, and each folder with its files of judgments."""
    split: list[Path] = []
    if path.is_file():
        split = [path]
        path = path.parent.parent if path.parent.name == "qrels" else path.parent
    paths = folders(path)
    if split:
        paths = paths[: paths[:1] == [path]]
    if not paths:
        raise UserError(
            f"{path.name} has no data set in the BEIR layout: it needs corpus.jsonl, "
            "queries.jsonl and qrels/<split>.tsv, each with or without .gz, or Parquet files."
        )
    return path, [(folder, split or _split(folder)) for folder in paths]


def _stem(file: Path) -> str:
    """The split of a file of judgments."""
    name = file.name.removesuffix(".gz")
    return _PART.sub("", name.removesuffix(suffix(name)))


def queries(folder: Path) -> Iterator[tuple[str, str]]:
    """The id and the text of every query of a folder, judged or not."""

    def read(row: Row) -> tuple[str, str]:
        return row[ID], clean(row[TEXT], "query")

    for path in table_files(folder, "queries"):
        file = File(path.name, path)
        for query in accepted(file, _rows(file, None), read):
            if not isinstance(query, Rejection):
                yield query


def judgment_files(folder: Path) -> list[Path]:
    """The files of judgments of one split of a folder: test, or else dev, or else train; empty
    without judgments."""
    # On the hub, judgments are in the folder of the texts or in a separate data set.
    for place in (folder / "qrels", folder / "data", folder):
        for kind in JUDGMENTS:
            paths: dict[str, list[Path]] = {}
            for file in sorted(place.glob("[!.]*")):
                if suffix(file.name) == kind and _stem(file) not in ("corpus", "queries"):
                    paths.setdefault(_stem(file), []).append(file)
            for split in (*_SPLITS, *paths):
                if split in paths:
                    return paths[split]
    return []


def _split(folder: Path) -> list[Path]:
    if files := judgment_files(folder):
        return files
    raise UserError(
        f"{folder.name}/qrels has no .tsv file: put the judgments there as test.tsv, with the "
        "header query-id, corpus-id, score (or as .jsonl or .parquet)."
    )


def _read_folder(
    folder: Path, qrels: list[Path], root: Path, dataset: str, ids: set[str]
) -> Iterator[JudgedRow]:
    part = _part(folder, root)
    shown = f"{part}/" if part else ""
    files = [File(f"{shown}{file.relative_to(folder)}", file) for file in qrels]
    judged = [row for file in files for row in judgment_rows(file, _qrels(file))]
    valid = [row for row in judged if isinstance(row, JudgmentRow)]
    queries = _texts(folder, "queries", shown, {row.query for row in valid})
    # Irrelevant documents, and those whose query is missing, give no pair.
    relevant = {row.document for row in valid if row.relevance and row.query in queries.by_id}
    documents = _texts(folder, "corpus", shown, relevant)
    language, domain = languages.of_folder(folder)

    def pair_of(row: JudgmentRow, query: str, document: str) -> TextPair:
        # Two data sets below one root can share ids.
        name = f"{shown}{row.pair_id}" if row.pair_id in ids else row.pair_id
        ids.add(name)
        return TextPair(name, query, document, language=language, domain=domain, dataset=dataset)

    yield from judged_pairs(
        judged, queries.__getitem__, documents.__getitem__, pair_of, part, language
    )


def _qrels(file: File) -> Iterator[Row]:
    if suffix(file.name) != ".tsv":
        yield from rows(file, COLUMNS)
        return
    columns = names_of(COLUMNS)
    with open_text(file) as stream:
        for number, line in enumerate(stream, start=1):
            cells = line.rstrip("\r\n").split("\t")
            if not line.strip(" \r\n"):
                continue
            if number == 1 and not _is_number(cells[-1]):
                header = [column_name(cell) for cell in cells]
                # BEIR's code reads by position: headers with other names have its order.
                if {*columns} <= {*header}:
                    columns = header
                continue
            problem = NOT_UTF8 if has_foreign_bytes(line) else ""
            if len(cells) != len(columns):
                problem = (
                    f"the line has {counted(len(cells), 'cell')}: write query-id, corpus-id and "
                    "score, separated by tabs"
                )
            yield Row(number, dict(zip(columns, cells, strict=False)), problem)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _texts(folder: Path, stem: str, shown: str, ids: set[str]) -> RowsById[str]:
    """The texts of a folder's queries or corpus with these ids."""
    files = [File(f"{shown}{p.relative_to(folder)}", p) for p in table_files(folder, stem)]
    if not files:
        raise UserError(
            f"{shown}{stem}.jsonl is missing: the BEIR layout needs corpus.jsonl, queries.jsonl "
            "and qrels/<split>.tsv, each with or without .gz, or Parquet files."
        )
    what = "query" if stem == "queries" else "document"

    def read(row: Row) -> str:
        return clean(joined(row[TITLE], row[TEXT]), what)

    table: RowsById[str] = RowsById(what, first_counts=what == "document")
    for file in files:
        table.add(file, _rows(file, ids), ID, read, ids)
    return table


def _rows(file: File, ids: set[str] | None) -> Iterator[Row]:
    """The rows of a file of texts. Rows of JSON lines that are known not to be in `ids` are
    skipped; None to skip none."""
    if suffix(file.name) == ".parquet":
        for row in rows(file, (ID, TEXT, TITLE, _SPAN)):
            if row.number == 1 and _SPAN.names[0] in row.cells:
                raise UserError(
                    f"{file.name} is in the PosIR format: use the folder that contains "
                    "<language>/<domain>/, so that the evidence is read too."
                )
            yield row
        return
    for number, line in json_lines(file):
        if ids is not None and line and (plain := _PLAIN_ID.match(line)) and plain[1] not in ids:
            continue
        yield json_row(number, line)


def _document(row: Row, part: str, language: str | None) -> Document:
    title = row[TITLE] or ""
    return Document(row[ID], joined(title, row[TEXT]), part, language, title)


def joined(title: str | None, text: str) -> str:
    """Title and text, joined by a space."""
    return " ".join(part for part in ((title or "").strip(), text.strip()) if part)


def _fits(path: Path) -> bool:
    if path.is_file():
        return path.parent.name == "qrels" and suffix(path.name) in JUDGMENTS
    return bool(folders(path))


register(
    Format(
        name="beir",
        description="BEIR (corpus.jsonl, queries.jsonl, qrels/<split>.tsv)",
        order=30,
        fits=_fits,
        read=read,
    )
)
