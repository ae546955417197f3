"""Data sets fetched by name, such as `hf:organisation/name` or `mteb:TASK`. Each source is a module
of this package that registers itself and returns a folder in one of the formats."""

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
    """A source of data sets whose names begin with `prefix`. `fetch` takes the whole name and
    returns the folder of its files; `short` returns the default name of such a data set."""

    prefix: str
    fetch: Callable[[str], Path]
    short: Callable[[str], str]


SOURCES: dict[str, Source] = {}
"""Every source by its prefix; filled by this package's modules."""


def register(source: Source) -> Source:
    """Register a source. Called once by its module."""
    if source.prefix in SOURCES:
        raise ValueError(f"two sources begin with {source.prefix}")
    SOURCES[source.prefix] = source
    return source


def source_of(name: str) -> Source | None:
    """The source whose prefix the name has; None for a path."""
    return next((source for prefix, source in SOURCES.items() if name.startswith(prefix)), None)


def folder_of(name: str) -> Path:
    """The folder or file of a data set, fetched if its name has a source.

    Raises:
        UserError: it cannot be fetched.
    """
    source = source_of(name)
    return Path(name) if source is None else source.fetch(name)


def checked_name(name: str, prefix: str, what: str) -> str:
    """The part of the name after the prefix.

    Raises:
        UserError: it is no valid name of `what`.
    """
    rest = name.removeprefix(prefix)
    if len(rest) > 200 or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", rest, re.ASCII):
        raise UserError(f"{name[:80]!r} is not of the form {prefix}{what}.")
    return rest


def not_installed(library: str) -> UserError:
    """The error message for a library that is not installed."""
    return UserError(
        f"{library} is not installed: run `pip install {library}`, or `pip install '.[data]'` in a "
        "checkout of PosLens."
    )


def unreachable(name: str, error: Exception) -> UserError:
    """The error message for a data set that its library could not load, for any reason."""
    text = printable(" ".join(str(error).split()))[:200] or type(error).__name__
    return UserError(
        f"{name} can't be downloaded ({text}): download it on a machine with network access and "
        "use its folder instead."
    )


# -- data sets of libraries, as folders in the BEIR layout -----------------------------------------


@dataclass(frozen=True, slots=True)
class LibraryCorpus:
    """A corpus with queries and judgments from a library: ids and texts, and judgments as query,
    document and grade. `folder` is its path below the data set's folder, empty for a single one;
    `split` is the split of the judgments."""

    documents: Callable[[], Iterable[tuple[str, str]]]
    queries: Callable[[], Iterable[tuple[str, str]]]
    judgements: Callable[[], Iterable[tuple[str, str, float]]]
    split: str = "test"
    folder: str = ""
    judged: bool = True


def place_of(prefix: str, name: str, language: str | None = None) -> Path:
    """Where a library's data set is stored as files; the folder's name states a language."""
    plain = name.replace("/", "--") + (f"-{language}" if language else "")
    return data_folder() / "collections" / prefix.rstrip(":") / plain


def written(place: Path, parts: Iterable[LibraryCorpus]) -> Path:
    """`place`, filled with parts in the BEIR layout; an interruption leaves no files.

    Raises:
        OSError: it cannot be written.
        Exception: an error of the library.
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
            if not place.is_dir():  # otherwise another process was faster
                raise
        return place
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _lines(file: Path, texts: Iterable[tuple[str, str]]) -> None:
    with file.open("w", encoding="utf-8") as out:
        for identity, text in texts:
            out.write(_line({"_id": identity, "text": text}))


def _line(row: Mapping[str, Any]) -> str:
    # Escaped, so that any text that a library returns can be written.
    return json.dumps(row) + "\n"


def short_name(prefix: str) -> Callable[[str], str]:
    """The name after the prefix, without slashes."""
    return lambda name: name.removeprefix(prefix).replace("/", "-")
