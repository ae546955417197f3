"""The manifest of shipped results, next to their Parquet files: the name and checksum of each.

A file contains one model's results under one method, as `cache export` writes them. The manifest
identifies them by the model's fingerprint and the method with its version, which are the store's
keys, so results of another model or method version are never used.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "results"
NAME = "manifest.json"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """One Parquet file: `rows` results of `model` under `method` (with its version), computed by
    version `poslens`. `datasets` are the data sets of its results; empty for embeddings and
    maps."""

    name: str
    model: str
    fingerprint: str
    method: str
    datasets: tuple[str, ...]
    rows: int
    bytes: int
    sha256: str
    poslens: str

    def __post_init__(self) -> None:
        texts = (self.name, self.model, self.fingerprint, self.method, self.sha256, self.poslens)
        if not all(isinstance(text, str) for text in (*texts, *self.datasets)):
            raise TypeError("a name is no text")
        if not re.fullmatch(r"[\w-]+\.parquet", self.name):
            raise ValueError("not the name of a file")
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError("not a checksum")
        if type(self.rows) is not int or type(self.bytes) is not int:
            raise TypeError("a size is no number")


def shipped_files(folder: Path = FOLDER) -> tuple[ShippedFile, ...]:
    """The files listed in the manifest of `folder`. Empty, with a log message, if the manifest is
    damaged."""
    try:
        listed = json.loads((folder / NAME).read_text(encoding="utf-8"))["files"]
        return tuple(
            ShippedFile(**{**entry, "datasets": tuple(entry["datasets"])}) for entry in listed
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        _LOG.warning("The list of included results is damaged, so PosLens does not use them.")
        return ()


def write_manifest(files: tuple[ShippedFile, ...], folder: Path = FOLDER) -> None:
    """Write the manifest of `folder`."""
    text = json.dumps({"files": [asdict(file) for file in files]}, indent=1, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
