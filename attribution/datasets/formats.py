"""Formats of data sets: their declarations, and detecting the format of a folder or file.

Each format is a module of this package that registers itself when the package is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import tables
from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.datasets.judged_pairs import Judged, from_pairs
from poslens.attribution.datasets.schema import Column
from poslens.attribution.datasets.streams import File, files_opened
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.names import declare
from poslens.attribution.paths import exists, is_folder
from poslens.attribution.text import listed

LANGUAGE = r"[A-Za-z]{2,3}(?:-[A-Za-z]{4})?"
"""A language as in PosIR's folder names: `eng` or, with its script, `eng-Latn`."""

_VARIANT = re.compile(rf"(?P<path>.+)@(?P<variant>{LANGUAGE}(?:-{LANGUAGE})?)")


@dataclass(frozen=True, slots=True)
class Format:
    """A format of data sets.

    `description` states in a few words how a file of the format is recognized. `fits` returns
    whether an existing path is in the format. Formats are tried by ascending `order`, so a format
    that accepts nearly any file comes last. `read` takes a path, a name and a title and, with
    `has_variants`, the requested variant. It returns a `Judged` if the format has relevance
    judgments; otherwise the corpus consists of the documents of the pairs. `documents` returns
    corpus and queries of a format without judgments. `unjudged` is set for a format that does not
    state which documents answer a query: it completes the error message shown if a collection is
    requested. `also` lists variants that are registered too, under the data set's name with the
    variant appended.
    """

    name: str
    description: str
    order: int
    fits: Callable[[Path], bool]
    read: Callable[..., DataSet | Judged]
    documents: Callable[..., Collection] | None = None
    unjudged: str = ""
    has_variants: bool = False
    also: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {}
"""Every format by name, in the order in which they are tried; filled by this package's modules."""


register = partial(declare, FORMATS)


def split_variant(source: str) -> tuple[str, str]:
    """Path and variant of a data set in the PosIR format.

    `PATH@eng` and `PATH@eng-Latn` are its English part; `PATH@eng-pol` and
    `PATH@eng-Latn-pol-Latn` are English queries with the Polish corpus.
    """
    match = _VARIANT.fullmatch(source)
    if match is None or exists(source):
        return source, ""
    return match["path"], match["variant"]


def detect(path: Path) -> str:
    """The name of the format of a data set's folder or file.

    Raises:
        UserError: `path` does not exist, or is in none of the formats.
    """
    if not is_folder(path) and not (exists(path) and path.is_file()):
        raise UserError(f"{path} is not a folder or a file: use the path of a data set.")
    with files_opened():  # not of the data set unless it is read from them too
        for entry in FORMATS.values():
            if entry.fits(path):
                return entry.name
    # The format that is detected last, a file of one's own, is the likeliest.
    formats = listed([entry.description for entry in reversed(FORMATS.values())], "or")
    raise UserError(f"{path.name} is not in a known format: {formats}.")


def read(path: Path, name: str, title: str = "", variant: str = "") -> DataSet:
    """Read a data set of any format; `variant` is `english` (MultiClaim), `eng` or `eng-pol`
    (PosIR).

    Raises:
        UserError: the path is in none of the formats, the variant does not exist, or reading fails.
    """
    entry = FORMATS[detect(path)]
    result = _opened(entry, path, name, title, variant)
    return result.data_set() if isinstance(result, Judged) else result


def collection(path: Path, name: str, title: str = "", variant: str = "") -> Collection:
    """The queries, judgments and corpus of a data set; for plain pairs, their documents.

    Raises:
        UserError: the format has no relevance judgments, or as `read`.
    """
    entry = FORMATS[detect(path)]
    if entry.unjudged:
        raise UserError(f"{title or name} {entry.unjudged}")
    result = _opened(entry, path, name, title, variant)
    return result.collection() if isinstance(result, Judged) else from_pairs(result)


def corpus(path: Path, name: str, title: str = "", variant: str = "") -> Collection:
    """The documents of a data set of any format, with or without judgments.

    Raises:
        UserError: as `collection`.
    """
    entry = FORMATS[detect(path)]
    if entry.documents is not None:
        return entry.documents(path, name, title)
    return collection(path, name, title, variant)


def _opened(entry: Format, path: Path, name: str, title: str, variant: str) -> DataSet | Judged:
    if entry.has_variants:
        return entry.read(path, name, title, variant)
    if variant:
        raise UserError(
            f"{path.name}@{variant}: only the PosIR format has languages to select; remove "
            f"@{variant}."
        )
    return entry.read(path, name, title)


def files_of(path: Path, suffixes: tuple[str, ...], prefix: str = "") -> list[File]:
    """The files of a folder, or the file at `path`, with one of these endings. Hidden files, such
    as those in which macOS stores attributes, aren't read."""
    paths = [path] if path.is_file() else sorted(path.glob("[!.]*"))
    return [
        File(prefix + p.name, p) for p in paths if p.is_file() and tables.suffix(p.name) in suffixes
    ]


def named_files(root: Path, names: Sequence[str]) -> dict[str, File]:
    """The files of these names that a folder has, with or without .gz, by name."""
    return {
        name: File(path.name, path)
        for name in names
        for path in (root / f"{name}.gz", root / name)
        if path.is_file()
    }


def has_columns(file: File, columns: Sequence[Column[Any]]) -> bool:
    """Whether a file on disk has all of the columns; False if it cannot be read."""
    present = tables.columns_of(file)
    return all(present & {*column.names} for column in columns)


def files_below(path: Path, accepts: Callable[[str], bool]) -> list[File]:
    """The file at `path`, or the files of a folder, if `accepts` is true for their names; if a
    folder has none, those of its subfolders, in which the hub stores a data set's splits."""
    if path.is_file():
        return [File(path.name, path)] if accepts(path.name) else []
    for pattern in ("[!.]*", "[!.]*/[!.]*"):
        listed = [p for p in sorted(path.glob(pattern)) if accepts(p.name) and p.is_file()]
        if listed:
            return [File(p.relative_to(path).as_posix(), p) for p in listed]
    return []
