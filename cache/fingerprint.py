"""What a stored number depends on, as short hashes.

A model's fingerprint covers the contents of its weight, tokenizer and configuration files and
the settings it is used with (prompts, lengths, similarity, precision): a model changed on disk
under the same name is another model.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from attribution.retrievers.registry import ModelFiles, RetrieverSpec
from attribution.types import TextPair

# (path, size, time of change, inode) -> digest. The inode's change time, which no program can
# set, is among them, so that a file swapped for one of the same size and date is read again.
_digests: dict[tuple[str, int, int, int], str] = {}
_lock = threading.Lock()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's contents, remembered while its inode does not change."""
    stat = path.stat()
    key = (str(path.resolve()), stat.st_size, stat.st_ctime_ns, stat.st_ino)
    with _lock:
        if found := _digests.get(key):
            return found
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    # Some file systems keep coarse times: a file just changed could change again unnoticed.
    if time.time_ns() - stat.st_ctime_ns > 2_000_000_000:
        with _lock:
            _digests[key] = digest
    return digest


def files_fingerprint(files: ModelFiles) -> str:
    """16 hexadecimal digits over names and contents of all of a model's files."""
    total = hashlib.sha256()
    for path in files.paths():
        total.update(f"{path.name}\0{file_digest(path)}\n".encode())
    return total.hexdigest()[:16]


def model_fingerprint(weights: str, settings: str) -> str:
    """16 hexadecimal digits over a files' fingerprint and the settings of use."""
    return hashlib.sha256(f"{weights}\0{settings}".encode()).hexdigest()[:16]


def text_fingerprint(pair: TextPair) -> str:
    """16 hexadecimal digits over the two texts."""
    return hashlib.sha256(f"{pair.query}\0{pair.document}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class UsedModel:
    """A model as it would be used here: `fingerprint` is the store's key, `weights` the files'."""

    spec: RetrieverSpec
    fingerprint: str
    weights: str
    precision: str
    device: str


def used_model(spec: RetrieverSpec, device: str, precision: str) -> UsedModel:
    """The model as its files are now, on the device and in the precision that would be chosen;
    cheap, loads nothing.

    Raises:
        UserError: its files are not here.
    """
    from attribution.retrievers import families, lexical
    from attribution.retrievers.load import plan

    files, where, kind = plan(spec, device, precision)
    spec = families.settled(spec, files.folder)
    weights = files_fingerprint(files)
    settings = f"{spec.settings}, precision={kind}{lexical.settings(spec)}"
    return UsedModel(spec, model_fingerprint(weights, settings), weights, kind, str(where))
