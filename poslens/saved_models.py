"""Models in memory as folders: a model is loaded from files alone, so that its fingerprint tells
what was computed with it."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from attribution.paths import is_folder
from attribution.retrievers.specs import data_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KEPT = 8
"""Folders that stay, those used last: a model in training is another one at each call."""
IN_USE_S = 300.0
"""What was used so lately stays too: somebody may be loading it."""
WRITTEN_S = 3600.0
"""What was begun so lately stays: somebody may be writing it."""


def folder_of(model: SentenceTransformer) -> Path:
    """The model's folder below the data folder. It is written at each call and named by its
    contents: nothing less tells whether a weight or a setting has changed since the last one."""
    root = data_folder() / "models" / "notebook"
    root.mkdir(parents=True, exist_ok=True)
    written = Path(mkdtemp(dir=root, prefix="new-"))
    try:
        model.save(str(written), create_model_card=False, safe_serialization=True)
        digest = hashlib.blake2b(digest_size=8)
        for file in sorted(path for path in written.rglob("*") if path.is_file()):
            digest.update(file.relative_to(written).as_posix().encode() + b"\0")
            # Part by part: a file of weights may be larger than the memory that is left.
            with file.open("rb") as content:
                while part := content.read(1 << 24):
                    digest.update(part)
        folder = root / f"model-{digest.hexdigest()}"
        if not is_folder(folder):
            written.replace(folder)
        os.utime(folder)
        return folder
    finally:
        shutil.rmtree(written, ignore_errors=True)
        _drop_old(root)


def _drop_old(root: Path) -> None:
    """Remove the folders used least lately, and what was left behind half written."""
    kept = sorted(root.glob("model-*"), key=_age_s)[:KEPT]
    for pattern, stays_s in (("model-*", IN_USE_S), ("new-*", WRITTEN_S)):
        for path in root.glob(pattern):
            if path not in kept and _age_s(path) > stays_s:
                shutil.rmtree(path, ignore_errors=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # somebody else has just removed it
        return 0.0
