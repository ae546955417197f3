"""The data sets known by name: the embedded sample, and folders named when the program starts."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from attribution.datasets import posir
from attribution.datasets.types import DataSet, Rejection
from attribution.errors import UserError
from attribution.types import TextPair

__all__ = ["DataSet", "Rejection", "names", "posir_selection", "read", "register_folder"]

SAMPLE = "sample"

_folders: dict[str, Path] = {SAMPLE: Path(__file__).parent / "sample" / "posir"}
_titles = {SAMPLE: "Embedded sample (PosIR layout)"}


def register_folder(name: str, folder: Path) -> None:
    """Make a folder in the PosIR layout known by name; a browser chooses among names."""
    if name == SAMPLE:
        raise UserError(f"{name} is the embedded data set's name: give the folder another name.")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give a data set's root folder.")
    _folders[name] = folder.resolve()
    _read.cache_clear()


def names() -> list[str]:
    """Names of the data sets, the sample first."""
    return list(_folders)


def read(name: str) -> DataSet:
    """The data set of this name, read once and kept.

    Raises:
        UserError: there is none, or its files are not as they should be.
    """
    if name not in _folders:
        raise UserError(f"There is no data set {name[:80]!r}: choose one of {', '.join(names())}.")
    return _read(name)


@lru_cache(maxsize=4)
def _read(name: str) -> DataSet:
    return posir.read(_folders[name], name, _titles.get(name, name))


def posir_selection(pair: TextPair) -> bool:
    """The PosIR protocol's choice of pairs: documents of at least 1,024 tokens (the data set's
    own count) whose evidence lies in the middle, 0.4 <= r <= 0.6 with r the span's mid-point
    over the document's characters."""
    if pair.evidence is None or (pair.document_tokens or 0) < 1024:
        return False
    middle = (pair.evidence.start + pair.evidence.end) / 2 / len(pair.document)
    return 0.4 <= middle <= 0.6
