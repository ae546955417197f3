"""Data sets that are fetched by name, as `hf:organisation/name` or `mteb:TASK`: each source is a
module of this package that registers itself and gives a folder in one of the formats."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import beir
from poslens.attribution.errors import UserError, printable
from poslens.attribution.retrievers.specs import data_folder


@dataclass(frozen=True, slots=True)
class Source:
    """Where data sets come from whose name begins with `prefix`. `fetch` takes the whole name and
    gives the folder of their files; `short` is what such a data set is called if nobody says."""

    prefix: str
    fetch: Callable[[str], Path]
    short: Callable[[str], str]


SOURCES: dict[str, Source] = {}
"""Every source by its prefix; filled by this package's modules."""


def register(source: Source) -> Source:
    """Make a source known. Called once by its module."""
    if source.prefix in SOURCES:
        raise ValueError(f"two sources begin with {source.prefix}")
    SOURCES[source.prefix] = source
    return source


def source_of(name: str) -> Source | None:
    """The source that a data set's name begins with; None of a path."""
    return next((source for prefix, source in SOURCES.items() if name.startswith(prefix)), None)


def folder_of(name: str) -> Path:
    """The folder or file of a data set, fetched where it has a source.

    Raises:
        UserError: it cannot be fetched.
    """
    source = source_of(name)
    return Path(name) if source is None else source.fetch(name)


def checked_name(name: str, prefix: str, what: str) -> str:
    """What stands behind the prefix.

    Raises:
        UserError: that is no name of `what`.
    """
    found = name.removeprefix(prefix)
    if len(found) > 200 or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", found, re.ASCII):
        raise UserError(f"{name[:80]!r} is not {prefix}{what}: give one of that form.")
    return found


def not_installed(library: str) -> UserError:
    """The sentence for a library that is not there."""
    return UserError(
        f"{library} is not installed: run `pip install {library}`, or `pip install '.[data]'` in a "
        "checkout of PosLens."
    )


def unreachable(name: str, error: Exception) -> UserError:
    """The sentence for a data set whose library could not get it, whatever it raised."""
    text = printable(" ".join(str(error).split()))[:200] or type(error).__name__
    return UserError(
        f"{name} cannot be fetched ({text}): fetch it where there is a network, and give its "
        "folder instead."
    )


# -- data sets of libraries, as folders in the BEIR layout -----------------------------------------


@dataclass(frozen=True, slots=True)
class LibraryCorpus:
    """A corpus, and what it is asked, as a library gives them: ids and texts, and judgements as
    query, document and grade. `folder` is its place below the data set's own, empty of one alone;
    `split` is what the judgements are of."""

    documents: Callable[[], Iterable[tuple[str, str]]]
    queries: Callable[[], Iterable[tuple[str, str]]]
    judgements: Callable[[], Iterable[tuple[str, str, float]]]
    split: str = "test"
    folder: str = ""
    judged: bool = True


def place_of(prefix: str, name: str, language: str | None = None) -> Path:
    """Where a library's data set is kept as files; a language is told by the folder's name."""
    plain = name.replace("/", "--") + (f"-{language}" if language else "")
    return data_folder() / "collections" / prefix.rstrip(":") / plain


def written(place: Path, parts: Iterable[LibraryCorpus]) -> Path:
    """`place`, filled with parts in the BEIR layout; one that was interrupted leaves nothing.

    Raises:
        OSError: it cannot be written.
        Exception: what the library raises.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{place.name[:60]}-", dir=place.parent))
    try:
        for part in parts:
            folder = new / part.folder
            folder.mkdir(exist_ok=True)
            _lines(folder / "corpus.jsonl", part.documents())
            if not part.judged:
                continue
            _lines(folder / "queries.jsonl", part.queries())
            (folder / "qrels").mkdir()
            with (folder / "qrels" / f"{part.split}.jsonl").open("w", encoding="utf-8") as out:
                for query, document, score in part.judgements():
                    out.write(_line({"query-id": query, "corpus-id": document, "score": score}))
            (folder / beir.KEEPS_OWN_IDS).touch()
        try:
            new.replace(place)
        except OSError:
            if not place.is_dir():  # another process was quicker where it is one
                raise
        return place
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _lines(file: Path, texts: Iterable[tuple[str, str]]) -> None:
    with file.open("w", encoding="utf-8") as out:
        for identity, text in texts:
            out.write(_line({"_id": identity, "text": text}))


def _line(row: Mapping[str, Any]) -> str:
    # Escaped, so that whatever a library gives as text can be written.
    return json.dumps(row) + "\n"


def short_name(prefix: str) -> Callable[[str], str]:
    """The name behind the prefix, without slashes."""
    return lambda name: name.removeprefix(prefix).replace("/", "-")
