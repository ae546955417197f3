"""Writes models in memory to folders, because PosLens identifies results by the fingerprint of
model files."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from poslens.attribution.paths import is_folder
from poslens.attribution.retrievers.specs import data_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KEPT = 8
"""Number of most recently used folders that are not deleted. A model in training is written to a
new folder at each call."""
IN_USE_S = 300.0
"""Seconds for which a folder is not deleted after its last use, because a process may be loading
it."""
WRITTEN_S = 3600.0
"""Seconds for which an incomplete folder is not deleted, because a process may be writing it."""


_written: WeakKeyDictionary[SentenceTransformer, tuple[bytes, Path]] = WeakKeyDictionary()
"""Digest of each model in memory when it was last written, and its folder."""


def folder_of(model: SentenceTransformer) -> Path:
    """The folder in the data folder to which the model is written, named after its contents. It is
    written again only if the model, including its weights, may have changed."""
    written = _written.get(model)
    if written is not None and is_folder(written[1]) and written[0] == _state_of(model):
        os.utime(written[1])
        return written[1]
    folder = _write(model)
    # The digest is computed after saving, because saving changes attributes of the object.
    if (state := _state_of(model)) is not None:
        _written[model] = state, folder
    return folder


class _Digest(io.RawIOBase):
    """A file that computes a digest of its contents without storing them."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b()

    def write(self, part: Any) -> int:
        self.digest.update(part)
        return len(part)


def _state_of(model: SentenceTransformer) -> bytes | None:
    """A digest of everything in the model object, including the bytes of its weights; None if a
    part cannot be serialized. A changed model always has another digest; an unchanged one may.
    Version counters of tensors would miss changes through `.data`."""
    import torch

    written = _Digest()
    try:
        torch.save(model, cast("IO[bytes]", written))
    except Exception:  # pickling an object of a library may raise anything
        return None
    return written.digest.digest()


def _write(model: SentenceTransformer) -> Path:
    """Write the model to the folder named by its contents, unless the folder exists."""
    root = data_folder() / "models" / "notebook"
    root.mkdir(parents=True, exist_ok=True)
    written = Path(mkdtemp(dir=root, prefix="new-"))
    try:
        model.save(str(written), create_model_card=False, safe_serialization=True)
        digest = hashlib.blake2b(digest_size=8)
        for file in sorted(path for path in written.rglob("*") if path.is_file()):
            digest.update(file.relative_to(written).as_posix().encode() + b"\0")
            with file.open("rb") as content:
                hashlib.file_digest(content, lambda: digest)
        folder = root / f"model-{digest.hexdigest()}"
        if not is_folder(folder):
            written.replace(folder)
        os.utime(folder)
        return folder
    finally:
        shutil.rmtree(written, ignore_errors=True)
        _drop_old(root)


def _drop_old(root: Path) -> None:
    """Remove the least recently used folders, and incomplete ones."""
    recent = sorted(root.glob("model-*"), key=_age_s)[:KEPT]
    for pattern, min_age_s in (("model-*", IN_USE_S), ("new-*", WRITTEN_S)):
        for path in root.glob(pattern):
            if path not in recent and _age_s(path) > min_age_s:
                shutil.rmtree(path, ignore_errors=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # another process has just removed it
        return 0.0
