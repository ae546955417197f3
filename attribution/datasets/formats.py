"""Which format a folder or file is in, and its reader."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from attribution.datasets import beir, colder, multiclaim, own, posir, tables
from attribution.datasets.corpus import Collection, from_pairs
from attribution.datasets.streams import File
from attribution.datasets.types import DataSet
from attribution.errors import UserError
from attribution.paths import exists, is_folder

Format = Literal["posir", "beir", "multiclaim", "colder", "own"]

ENGLISH = "english"
"""The variant of MultiClaim with all texts in English."""

_LANGUAGE = r"[A-Za-z]{2,3}(?:-[A-Za-z]{4})?"
_VARIANT = re.compile(rf"(?P<path>.+)@(?P<variant>{_LANGUAGE}(?:-{_LANGUAGE})?)")
_PARTS = re.compile(rf"(?P<queries>{_LANGUAGE})(?:-(?P<documents>{_LANGUAGE}))?")


def split_variant(source: str) -> tuple[str, str]:
    """Path and variant of a data set in the PosIR layout.

    `PATH@eng` and `PATH@eng-Latn` are its English part; `PATH@eng-pol` and
    `PATH@eng-Latn-pol-Latn` are English queries with the Polish corpus.
    """
    found = _VARIANT.fullmatch(source)
    if found is None or exists(source):
        return source, ""
    return found["path"], found["variant"]


def _languages(variant: str) -> tuple[str, str]:
    """The languages of queries and documents that a variant names; both empty where it is empty,
    both the same where it names one."""
    found = _PARTS.fullmatch(variant)
    if found is None:
        return "", ""
    return found["queries"], found["documents"] or found["queries"]


def detect(path: Path) -> Format:
    """The format of a data set's folder or file.

    Raises:
        UserError: there is nothing at `path`, or it is in none of the formats.
    """
    if is_folder(path):
        if any(path.glob("*/*/queries.parquet")):
            return "posir"
        if multiclaim.files(path) is not None:
            return "multiclaim"
        if beir.folders(path):
            return "beir"
        if _colder_files(path):
            return "colder"
        if _own_files(path):
            return "own"
    elif exists(path) and path.is_file():
        if path.parent.name == "qrels" and tables.suffix(path.name) in beir.JUDGEMENTS:
            return "beir"
        if _colder_files(path):
            return "colder"
        if tables.suffix(path.name):
            return "own"
    else:
        raise UserError(f"{path} is not a folder or a file: give a data set's path.")
    raise UserError(
        f"{path.name} is no data set known here: neither PosIR (<language>/<domain>/"
        "queries.parquet), BEIR (corpus.jsonl, queries.jsonl, qrels/<split>.tsv), MultiClaim "
        "(posts.csv, fact_checks.csv, fact_check_post_mapping.csv), ColDeR (.jsonl with query, "
        "document_1 and document_2) nor a .csv, .tsv, .jsonl or .parquet file with the columns "
        "query and document."
    )


def read(path: Path, name: str, title: str = "", variant: str = "") -> DataSet:
    """Read a data set of any format; `variant` is `english` (MultiClaim), `eng` or `eng-pol`
    (PosIR).

    Raises:
        UserError: none of the formats, no such variant, or what its reader raises.
    """
    kind = detect(path)
    if variant and kind not in ("posir", "multiclaim"):
        raise UserError(
            f"{path.name}@{variant}: only the PosIR layout has a folder for each language; leave "
            "that part out."
        )
    if kind == "posir":
        return posir.read(path, name, title, *_languages(variant))
    if kind == "beir":
        return beir.read(path, name, title)
    if kind == "multiclaim":
        version: multiclaim.Version = "english" if variant == ENGLISH else "original"
        return multiclaim.read(path, name, title, version)
    if kind == "colder":
        return colder.read(_colder_files(path), name, title)
    return own.read(_own_files(path), name, title)


def collection(path: Path, name: str, title: str = "", variant: str = "") -> Collection:
    """The queries, judgements and corpus of a data set; of plain pairs, their documents.

    Raises:
        UserError: ColDeR, which judges no relevance, or as `read`.
    """
    kind = detect(path)
    if kind == "posir":
        return posir.collection(path, name, title, *_languages(variant))
    if kind == "beir":
        return beir.collection(path, name, title)
    if kind == "multiclaim":
        version: multiclaim.Version = "english" if variant == ENGLISH else "original"
        return multiclaim.collection(path, name, title, version)
    if kind == "colder":
        raise UserError(
            f"{title or name} compares two documents for one query and judges no relevance: choose "
            "a data set with judgements to rank."
        )
    return from_pairs(read(path, name, title, variant))


def _own_files(path: Path) -> list[File]:
    return _files(path, tables.SUFFIXES)


def _colder_files(path: Path) -> list[File]:
    files = _files(path, (".jsonl",)) or _files(path / "test", (".jsonl",), "test/")
    for file in files:
        try:
            first = next(tables.json_rows(file), None)
        except UserError:
            return []
        if first is None or not colder.fits(first):
            return []
    return files


def _files(path: Path, suffixes: tuple[str, ...], prefix: str = "") -> list[File]:
    found = [path] if path.is_file() else sorted(path.glob("*"))
    return [
        File(prefix + p.name, p) for p in found if p.is_file() and tables.suffix(p.name) in suffixes
    ]
