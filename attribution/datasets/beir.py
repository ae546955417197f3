"""The BEIR layout (Thakur et al. 2021), as BEIR-PL uses it too.

`corpus.jsonl` (_id, title, text), `queries.jsonl` (_id, text) and `qrels/<split>.tsv` (query-id,
corpus-id, score, with that header); each may end in `.gz`. Judgements and queries are read first,
then the corpus in one pass that keeps only the documents which pairs need, so that a corpus of
millions of documents is never held. Title and text are joined by one space, as BEIR and
sentence-transformers do for models that take one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attribution.datasets import languages
from attribution.datasets.corpus import Collection, Document, gather, grade
from attribution.datasets.streams import File, json_lines, open_text
from attribution.datasets.tables import json_row
from attribution.datasets.types import DataSet, Judgement, Rejection, collect, pairs_of
from attribution.errors import UserError
from attribution.text import clean
from attribution.types import TextPair

_SPLITS = ("test", "dev", "validation", "val", "train")
# Where a line begins with a plain id, one that no pair needs is passed over unparsed.
_ID = re.compile(r'\s*\{\s*"_id"\s*:\s*"([^"\\]*)"\s*[,}]')


@dataclass(slots=True)
class _Texts:
    """Texts by id, and what stood in the way of others."""

    file: str
    by_id: dict[str, str] = field(default_factory=dict)
    twice: dict[str, str] = field(default_factory=dict)
    unread: int = 0
    first_unread: str = ""

    def absent(self, what: str, identity: str) -> str:
        """Why there is no text of this id."""
        if identity in self.twice:
            return f"{what} {identity} is there twice with another text: {self.twice[identity]}"
        hint = f"; {self.unread} lines of {self.file} cannot be read, the first: "
        return f"{what} {identity} does not exist" + (
            hint + self.first_unread if self.unread else ""
        )


def folders(root: Path) -> list[Path]:
    """The folders with a corpus, `root` itself or up to two levels below it."""
    found = {
        path.parent
        for depth in ("", "*/", "*/*/")
        for name in ("corpus.jsonl", "corpus.jsonl.gz")
        for path in root.glob(depth + name)
        if path.is_file()
    }
    return sorted(found)


def read(path: Path, name: str, title: str = "") -> DataSet:
    """One pair for each judgement above zero: of the test split, else dev, else train.

    `path` is the data set's folder, a folder of several, or the qrels file of a chosen split.

    Raises:
        UserError: a file is missing or damaged, or no judgement makes a pair.
    """
    path, chosen = _chosen(path)
    found = pairs_of(_judged(path, chosen, name))
    return collect(name, _title(name, title, chosen), found)


def collection(path: Path, name: str, title: str = "") -> Collection:
    """Queries, judgements and the whole corpus of each folder; documents are read line by line as
    they are asked for.

    Raises:
        UserError: as `read`.
    """
    path, chosen = _chosen(path)

    def stream() -> Iterator[Document]:
        for folder, _ in chosen:
            part = _part(path, folder)
            language, _ = languages.of_folder(_names(folder))
            file = File(f"{part}/corpus.jsonl" if part else "corpus.jsonl", _corpus(folder))
            seen: set[str] = set()
            for number, line in json_lines(file):
                row = json_row(number, line)
                identity = row.cells.get("_id")
                if row.problem or not _is_id(identity) or str(identity) in seen:
                    yield Document("", "", part, language, file.name, number)
                    continue
                seen.add(str(identity))
                text = _joined(row.cells.get("title"), row.cells.get("text"))
                yield Document(str(identity), text, part, language, file.name, number)

    files = [_corpus(folder) for folder, _ in chosen]
    title = _title(name, title, chosen)
    return gather(name, title, _judged(path, chosen, name), stream, files)


def _title(name: str, title: str, chosen: list[tuple[Path, Path]]) -> str:
    return title or f"{name} (BEIR, {', '.join(sorted({_stem(file) for _, file in chosen}))})"


def _part(root: Path, folder: Path) -> str:
    return "/".join(folder.relative_to(root).parts)


def _corpus(folder: Path) -> Path:
    plain = folder / "corpus.jsonl"
    return plain if plain.is_file() else folder / "corpus.jsonl.gz"


def _chosen(path: Path) -> tuple[Path, list[tuple[Path, Path]]]:
    """The root, and each folder with the file of its judgements."""
    split: Path | None = None
    if path.is_file():
        split = path
        path = path.parent.parent if path.parent.name == "qrels" else path.parent
    found = folders(path)
    if split:
        found = found[: found[:1] == [path]]
    if not found:
        raise UserError(
            f"{path.name} holds no data set in the BEIR layout: it needs corpus.jsonl, "
            "queries.jsonl and qrels/<split>.tsv, each with or without .gz."
        )
    return path, [(folder, split or _split(folder)) for folder in found]


def _judged(
    root: Path, chosen: list[tuple[Path, Path]], name: str
) -> Iterator[Judgement | Rejection]:
    ids: set[str] = set()
    for folder, qrels in chosen:
        yield from _read_folder(folder, qrels, folder.relative_to(root).parts, name, ids)


def _stem(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".tsv")


def _split(folder: Path) -> Path:
    # On the hub the judgements lie beside the texts, or come as a set of their own.
    for place in (folder / "qrels", folder):
        found = {_stem(f): f for f in sorted((*place.glob("*.tsv"), *place.glob("*.tsv.gz")))}
        for split in (*_SPLITS, *found):
            if split in found:
                return found[split]
    raise UserError(
        f"{folder.name}/qrels holds no .tsv file: put the judgements there as test.tsv, with the "
        "header query-id, corpus-id, score."
    )


def _read_folder(
    folder: Path, qrels: Path, inner: tuple[str, ...], dataset: str, ids: set[str]
) -> Iterator[Judgement | Rejection]:
    shown = "/".join((*inner, ""))
    judgements = list(_judgements(File(f"{shown}{qrels.relative_to(folder)}", qrels)))
    wanted = [found for found in judgements if isinstance(found, _Line)]
    queries = _texts(folder, "queries.jsonl", shown, {j.query for j in wanted})
    # Judgements whose query is missing need no document.
    documents = _texts(
        folder, "corpus.jsonl", shown, {j.document for j in wanted if j.query in queries.by_id}
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
        if judgement.document not in documents.by_id:
            yield Rejection(*at, documents.absent("document", judgement.document))
            continue
        if key in taken:
            yield Rejection(*at, f"{judgement.query} with {judgement.document} is there twice")
            continue
        try:
            query = clean(queries.by_id[judgement.query], "query").text
            document = clean(documents.by_id[judgement.document], "document").text
        except UserError as error:
            yield Rejection(*at, f"{judgement.query} with {judgement.document}: {error}")
            continue
        taken.add(key)
        pair_id = f"{judgement.query}/{judgement.document}"
        # Two sets below one root may share ids.
        if pair_id in ids:
            pair_id = f"{shown}{pair_id}"
        ids.add(pair_id)
        pair = TextPair(pair_id, query, document, language=language, domain=domain, dataset=dataset)
        yield Judgement(
            pair, judgement.query, judgement.document, judgement.relevance, "/".join(inner),
            language,
        )  # fmt: skip


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
    with open_text(file) as stream:
        for number, line in enumerate(stream, start=1):
            cells = line.rstrip("\r\n").split("\t")
            if not line.strip(" \r\n") or (number == 1 and not _is_number(cells[-1])):
                continue
            if len(cells) != 3:
                yield Rejection(
                    file.name, number,
                    f"the line has {len(cells)} cells, not query-id, corpus-id and score",
                )  # fmt: skip
            elif not _is_number(cells[2]):
                yield Rejection(file.name, number, f"the score {cells[2][:40]!r} is no number")
            elif not float(cells[2]) > 0:
                yield Rejection(file.name, number, f"{cells[0]}: {cells[1]} is judged not relevant")
            else:
                yield _Line(file.name, number, cells[0], cells[1], grade(float(cells[2])))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _texts(folder: Path, name: str, shown: str, wanted: set[str]) -> _Texts:
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise UserError(
            f"{shown}{name} is missing: the BEIR layout needs corpus.jsonl, queries.jsonl and "
            "qrels/<split>.tsv, each with or without .gz."
        )
    texts = _Texts(f"{shown}{path.name}")
    lines: dict[str, int] = {}
    for number, line in json_lines(File(texts.file, path)):
        if line and (plain := _ID.match(line)) and plain[1] not in wanted:
            continue
        row = json_row(number, line)
        cells = row.cells
        problem = row.problem
        if not problem and not _is_id(cells.get("_id")):
            problem = "the line has no _id"
        if problem:
            texts.unread += 1
            texts.first_unread = texts.first_unread or f"line {number}, {problem}"
            continue
        identity = str(cells["_id"])
        if identity not in wanted:
            continue
        text = _joined(cells.get("title"), cells.get("text"))
        if lines.setdefault(identity, number) != number:
            if texts.by_id.get(identity, text) != text:
                texts.twice[identity] = f"lines {lines[identity]} and {number} of {texts.file}"
            continue
        texts.by_id[identity] = text
    for identity in texts.twice:
        del texts.by_id[identity]
    return texts


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _joined(title: Any, text: Any) -> str:
    parts = (part.strip() for part in (title, text) if isinstance(part, str))
    return " ".join(part for part in parts if part)
