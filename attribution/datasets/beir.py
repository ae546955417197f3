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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import languages
from poslens.attribution.datasets.corpus import Collection, Document, gather, grade
from poslens.attribution.datasets.formats import Format, register
from poslens.attribution.datasets.row import NOT_UTF8, Row
from poslens.attribution.datasets.streams import (
    File,
    has_foreign_bytes,
    json_lines,
    open_text,
)
from poslens.attribution.datasets.tables import json_row, rows, suffix
from poslens.attribution.datasets.types import (
    DataSet,
    Judgement,
    LostDocument,
    Rejection,
    checked_id,
    collect,
    pairs_of,
)
from poslens.attribution.errors import UserError
from poslens.attribution.text import clean
from poslens.attribution.types import TextPair

_SPLITS = ("test", "dev", "validation", "val", "train")
JUDGEMENTS = (".tsv", ".jsonl", ".parquet")
"""Formats of judgments, the paper's first."""

KEEPS_OWN_IDS = "keeps-own-ids"
"""A file of this name means that a query can find the document with its own id, because ids of
queries and documents are unrelated, as in most data sets that are not BEIR's own."""

_JUDGEMENT = ("query-id", "corpus-id", "score")
_PART = re.compile(r"-\d{5}-of-\d{5}$")
# Lines that begin with a plain id that no pair needs are skipped without parsing.
_ID = re.compile(r'\s*\{\s*"_id"\s*:\s*"([^"\\]*)"\s*[,}]')


@dataclass(slots=True)
class _Texts:
    """Texts by id, and why others are missing."""

    file: str
    by_id: dict[str, str] = field(default_factory=dict)
    twice: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    unread: int = 0
    first_unread: str = ""

    def absent(self, what: str, identity: str) -> str:
        """Why there is no text with this id."""
        if identity in self.twice:
            return f"{what} {identity} is there twice with another text: {self.twice[identity]}"
        hint = f"; {self.unread} lines of {self.file} cannot be read, the first: "
        return f"{what} {identity} does not exist" + (
            hint + self.first_unread if self.unread else ""
        )


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


def read(path: Path, name: str, title: str = "") -> DataSet:
    """One pair for each judgment above zero: of the test split, or else dev, or else train.

    `path` is the data set's folder, a folder of several, or the qrels file of a split.

    Raises:
        UserError: a file is missing or damaged, or no judgment makes a valid pair.
    """
    path, chosen = _chosen(path)
    found = pairs_of(_judged(path, chosen, name))
    return collect(name, _title(name, title, chosen), found)


def collection(path: Path, name: str, title: str = "") -> Collection:
    """Queries, judgments and the whole corpus of each folder; documents are read row by row on
    demand.

    As in BEIR, a query does not find the document with its own id (ArguAna's arguments and Quora's
    questions are both queries and documents), and judged documents that the corpus lacks count as
    not found.

    Raises:
        UserError: as `read`.
    """
    path, chosen = _chosen(path)

    def stream() -> Iterator[Document]:
        for folder, _ in chosen:
            part = folder.relative_to(path).as_posix().removeprefix(".")
            language, _ = languages.of_folder(_names(folder))
            seen: set[str] = set()
            for file in table_files(folder, "corpus"):
                shown = File(file.relative_to(path).as_posix(), file)
                for row in _rows(shown, None):
                    identity = row.cells.get("_id")
                    known = "" if row.problem or not _is_id(identity) else str(identity)
                    known = "" if known in seen else known
                    seen.add(known)
                    title = row.cells.get("title")
                    text = _joined(title, row.cells.get("text"))
                    yield Document(
                        known,
                        text,
                        part,
                        language,
                        shown.name,
                        row.number,
                        title if isinstance(title, str) else "",
                    )

    files = [file for folder, _ in chosen for file in table_files(folder, "corpus")]
    title = _title(name, title, chosen)
    skips = not all((folder / KEEPS_OWN_IDS).is_file() for folder, _ in chosen)
    return gather(name, title, _judged(path, chosen, name), stream, files, skips_own_id=skips)


def _title(name: str, title: str, chosen: list[tuple[Path, list[Path]]]) -> str:
    splits = sorted({_stem(files[0]) for _, files in chosen})
    return title or f"{name} (BEIR, {', '.join(splits)})"


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
            f"{path.name} holds no data set in the BEIR layout: it needs corpus.jsonl, "
            "queries.jsonl and qrels/<split>.tsv, each with or without .gz, or Parquet files."
        )
    return path, [(folder, split or _split(folder)) for folder in paths]


def _judged(
    root: Path, chosen: list[tuple[Path, list[Path]]], name: str
) -> Iterator[Judgement | Rejection]:
    ids: set[str] = set()
    for folder, qrels in chosen:
        yield from _read_folder(folder, qrels, folder.relative_to(root).parts, name, ids)


def _stem(file: Path) -> str:
    """The split of a file of judgments."""
    name = file.name.removesuffix(".gz")
    return _PART.sub("", name.removesuffix(suffix(name)))


def queries(folder: Path) -> dict[str, str]:
    """Every query of a folder by its id, judged or not; of duplicate ids the first."""
    texts: dict[str, str] = {}
    for path in table_files(folder, "queries"):
        for row in _rows(File(path.name, path), None):
            identity = row.cells.get("_id")
            if not row.problem and _is_id(identity):
                texts.setdefault(str(identity), _joined(None, row.cells.get("text")))
    return texts


def judgement_files(folder: Path) -> list[Path]:
    """The files of judgments of one split of a folder: test, or else dev, or else train; empty
    without judgments."""
    # On the hub, judgments are in the folder of the texts or in a separate data set.
    for place in (folder / "qrels", folder / "data", folder):
        for kind in JUDGEMENTS:
            paths: dict[str, list[Path]] = {}
            for file in sorted(place.glob("*")):
                if suffix(file.name) == kind and _stem(file) not in ("corpus", "queries"):
                    paths.setdefault(_stem(file), []).append(file)
            for split in (*_SPLITS, *paths):
                if split in paths:
                    return paths[split]
    return []


def _split(folder: Path) -> list[Path]:
    if files := judgement_files(folder):
        return files
    raise UserError(
        f"{folder.name}/qrels holds no .tsv file: put the judgements there as test.tsv, with the "
        "header query-id, corpus-id, score (or as .jsonl or .parquet)."
    )


def _read_folder(
    folder: Path, qrels: list[Path], inner: tuple[str, ...], dataset: str, ids: set[str]
) -> Iterator[Judgement | Rejection]:
    shown = "/".join((*inner, ""))
    judgements = [
        judgement
        for file in qrels
        for judgement in _judgements(File(f"{shown}{file.relative_to(folder)}", file))
    ]
    wanted = [judgement for judgement in judgements if isinstance(judgement, _Line)]
    queries = _texts(folder, "queries", shown, {j.query for j in wanted})
    # Judgments whose query is missing need no document.
    documents = _texts(
        folder, "corpus", shown, {j.document for j in wanted if j.query in queries.by_id}
    )
    language, domain = languages.of_folder(_names(folder))
    taken: set[tuple[str, str]] = set()
    for judgement in judgements:
        if isinstance(judgement, Rejection):
            yield judgement
            continue
        at = (judgement.file, judgement.row)
        key = (judgement.query, judgement.document)
        if judgement.query not in queries.by_id:
            yield Rejection(*at, queries.absent("query", judgement.query))
            continue
        if key in taken:
            yield Rejection(*at, f"{judgement.query} with {judgement.document} is there twice")
            continue
        try:
            query = clean(queries.by_id[judgement.query], "query").text
        except UserError as error:
            yield Rejection(*at, f"{judgement.query} with {judgement.document}: {error}")
            continue
        taken.add(key)
        lost, document = "", ""
        try:
            document = clean(documents.by_id[judgement.document], "document").text
        except KeyError:
            lost = documents.absent("document", judgement.document)
        except UserError as error:
            lost = f"{judgement.query} with {judgement.document}: {error}"
        if lost:
            yield LostDocument(
                *at,
                lost,
                judgement.query,
                query,
                judgement.document,
                judgement.relevance,
                "/".join(inner),
                language,
            )
            continue
        pair_id = f"{judgement.query}/{judgement.document}"
        # Two data sets below one root can share ids.
        if pair_id in ids:
            pair_id = f"{shown}{pair_id}"
        ids.add(pair_id)
        pair = TextPair(pair_id, query, document, language=language, domain=domain, dataset=dataset)
        yield Judgement(
            pair,
            judgement.query,
            judgement.document,
            judgement.relevance,
            "/".join(inner),
            language,
        )


def _names(folder: Path) -> tuple[str, ...]:
    if folder.parent.name == "snapshots":
        # The hub's cache: datasets--organisation--name/snapshots/<commit>.
        return tuple(folder.parent.parent.name.split("--")[1:]) or (folder.name,)
    return folder.parent.name, folder.name


@dataclass(frozen=True, slots=True)
class _Line:
    file: str
    row: int
    query: str
    document: str
    relevance: int


def _judgements(file: File) -> Iterator[_Line | Rejection]:
    if suffix(file.name) != ".tsv":
        for row in rows(file, _JUDGEMENT):
            yield _judgement(file.name, row)
        return
    with open_text(file) as stream:
        for number, line in enumerate(stream, start=1):
            cells = line.rstrip("\r\n").split("\t")
            if not line.strip(" \r\n") or (number == 1 and not _is_number(cells[-1])):
                continue
            if len(cells) != 3:
                yield Rejection(
                    file.name,
                    number,
                    f"the line has {len(cells)} cells, not query-id, corpus-id and score",
                )
            elif has_foreign_bytes(line):
                yield Rejection(file.name, number, NOT_UTF8)
            else:
                named = dict(zip(_JUDGEMENT, cells, strict=True))
                yield _judgement(file.name, Row(number, named))


def _judgement(file: str, row: Row) -> _Line | Rejection:
    if row.problem:
        return Rejection(file, row.number, row.problem)
    try:
        query, document = (checked_id(row.cells.get(name), name) for name in _JUDGEMENT[:2])
        relevance = grade(row.cells.get("score"))
    except UserError as error:
        return Rejection(file, row.number, str(error))
    if not relevance:
        return Rejection(file, row.number, f"{query}: {document} is judged not relevant")
    return _Line(file, row.number, query, document, relevance)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _texts(folder: Path, stem: str, shown: str, wanted: set[str]) -> _Texts:
    files = [File(f"{shown}{p.relative_to(folder)}", p) for p in table_files(folder, stem)]
    if not files:
        raise UserError(
            f"{shown}{stem}.jsonl is missing: the BEIR layout needs corpus.jsonl, queries.jsonl "
            "and qrels/<split>.tsv, each with or without .gz, or Parquet files."
        )
    texts = _Texts(files[0].name if len(files) == 1 else f"{shown}{stem}")
    for file in files:
        for row in _rows(file, wanted):
            _take(texts, file.name, row, wanted)
    for identity in texts.twice:
        del texts.by_id[identity]
    return texts


def _rows(file: File, wanted: set[str] | None) -> Iterator[Row]:
    """The rows of texts; for lines of JSON only those in `wanted`, unless all are."""
    if suffix(file.name) == ".parquet":
        yield from rows(file, ("_id", "text"), ("title", "pos_char_span"))
        return
    for number, line in json_lines(file):
        if wanted is not None and line and (plain := _ID.match(line)) and plain[1] not in wanted:
            continue
        yield json_row(number, line)


def _take(texts: _Texts, file: str, row: Row, wanted: set[str]) -> None:
    cells = row.cells
    problem = row.problem
    if not problem and not _is_id(cells.get("_id")):
        problem = "the line has no _id"
    if problem:
        texts.unread += 1
        texts.first_unread = texts.first_unread or f"line {row.number}, {problem}"
        return
    if "pos_char_span" in cells and row.number == 1:
        raise UserError(
            f"{file} is of the PosIR layout: give the folder that holds <language>/<domain>/, so "
            "that the evidence is read too."
        )
    identity = str(cells["_id"])
    if identity not in wanted:
        return
    text = _joined(cells.get("title"), cells.get("text"))
    first = texts.places.setdefault(identity, (file, row.number))
    if first == (file, row.number):
        texts.by_id[identity] = text
    elif texts.by_id.get(identity, text) != text:
        texts.twice[identity] = (
            f"lines {first[1]} and {row.number} of {file}"
            if first[0] == file
            else f"line {first[1]} of {first[0]} and line {row.number} of {file}"
        )


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _joined(title: Any, text: Any) -> str:
    parts = (part.strip() for part in (title, text) if isinstance(part, str))
    return " ".join(part for part in parts if part)


def _fits(path: Path) -> bool:
    if path.is_file():
        return path.parent.name == "qrels" and suffix(path.name) in JUDGEMENTS
    return bool(folders(path))


register(
    Format(
        name="beir",
        description="BEIR (corpus.jsonl, queries.jsonl, qrels/<split>.tsv)",
        order=30,
        fits=_fits,
        read=read,
        collection=collection,
    )
)
