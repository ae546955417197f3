"""Write a debiased model as a plain sentence-transformers folder that needs nothing of PosLens."""

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
    to a new folder, which appears only when all of it is there. The retriever is of no other use
    then.

    Raises:
        OSError: the disk does not take it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    written = Path(mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        adapter.save(written / ADAPTER, manifest.base)
        adapter.merge()
        model = retriever.model
        # As the retriever uses them: its own name may set other ones than the model's files.
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
    """Copy a debiased model, with its adapter alone in a folder within, to a new folder.

    Raises:
        UserError: something is at `target` already, or it cannot be written.
    """
    require_new(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder, target)
    except OSError as error:
        raise UserError(
            f"{target} cannot be written ({os.strerror(error.errno or 0)}): name another folder."
        ) from error


def require_new(folder: Path) -> None:
    """Do nothing, unless something is at `folder` already.

    Raises:
        UserError: something is.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists: name a new folder.")
