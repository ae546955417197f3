"""Writes a debiased model as a plain sentence-transformers folder that works without PosLens, with
a card that states its training, its measured results and its limits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp

from poslens.attribution.debiasing import card
from poslens.attribution.debiasing.folder import ADAPTER, Manifest
from poslens.attribution.debiasing.lora import Adapter
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.dense import DenseRetriever

CARD = "README.md"


def write_model(
    retriever: DenseRetriever, adapter: Adapter, manifest: Manifest, folder: Path
) -> None:
    """Merge the adapter into the retriever's weights, and write model, adapter, manifest and card
    to a new folder, which appears only when complete. The retriever cannot be used afterwards.

    Raises:
        OSError: the files cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    written = Path(mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        adapter.save(written / ADAPTER, manifest.base)
        adapter.merge()
        model = retriever.model
        # The settings that the retriever uses, which can differ from those in the model's files.
        for side, prompt in retriever.prompts.items():
            model.prompts[side] = prompt
        model.save_pretrained(str(written), create_model_card=False, safe_serialization=True)
        manifest.write(written)
        (written / CARD).write_text(card.model_card(manifest, folder.name), encoding="utf-8")
        written.chmod(0o755)
        written.replace(folder)
    finally:
        shutil.rmtree(written, ignore_errors=True)


def copy_model(folder: Path, target: Path) -> None:
    """Copy a debiased model to a new folder, with its adapter alone in a subfolder.

    Raises:
        UserError: `target` exists already, or cannot be written.
    """
    require_new(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder, target)
    except OSError as error:
        raise UserError(
            f"{target} can't be written ({os.strerror(error.errno or 0)}): use another folder."
        ) from error


def require_new(folder: Path) -> None:
    """Check that nothing exists at `folder`.

    Raises:
        UserError: something does.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists: name a new folder.")
