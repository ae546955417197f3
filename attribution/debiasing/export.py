"""Writes a debiased model as a plain sentence-transformers folder that works without PosLens, with
a card that states its training, its measured results and its limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from poslens.attribution.debiasing.folder import ADAPTER, Manifest
from poslens.attribution.debiasing.lora import Adapter
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.model_folder import Contents, contents

CARD = "README.md"

LIMITS = (
    "Training teaches the model to ignore the order of sentences. Where order carries meaning (a "
    "story, a proof, instructions), two texts that differ only in order have more similar vectors "
    "than before.",
    "It was evaluated on half of one corpus. Measure it on your own queries before you use it.",
    "A corpus that was indexed with the base model must be indexed again.",
    "As before, the model does not read text past its context limit.",
)


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
        card = model_card(manifest, folder.name, contents(written))
        (written / CARD).write_text(card, encoding="utf-8")
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
        shutil.rmtree(target, ignore_errors=True)
        raise UserError(
            f"{target} can't be written ({os.strerror(error.errno or 0)}): use another folder."
        ) from error


def require_new(folder: Path) -> None:
    """Check that nothing exists at `folder`, and that it can be created.

    Raises:
        UserError: something exists there, or it cannot be created.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists: name a new folder.")
    parent = next(each for each in folder.resolve().parents if each.exists())
    try:
        # Permissions alone don't say so, such as for root.
        with TemporaryDirectory(dir=parent):
            pass
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}).") from None


def model_card(
    manifest: Manifest,
    name: str,
    files: Contents,
    results: Sequence[tuple[str, str, str, str]] = (),
    verdict: str = "",
) -> str:
    """The card of the model in `files` as Markdown. `results` are rows of (measure, before, after,
    change) on the held-out half; empty before evaluation."""
    license = f"license: {manifest.license.lower()}\n" if manifest.license else ""
    checks = "\n".join(
        f"| {step} | {f'{loss:.4f}' if step else ''} | {effect.text('+.4f') if effect else '–'} |"
        for step, loss, effect in manifest.checks
    )
    recipe = ", ".join(f"{key} {value:.10g}" for key, value in manifest.recipe.items())
    measured = "Not measured yet."
    if results:
        rows = "\n".join(f"| {' | '.join(row)} |" for row in results)
        measured = (
            f"{verdict}\n\nOn held-out documents; 95% intervals resample documents, and changes "
            "are paired.\n\n| measure | before | after | change |\n|---|---|---|---|\n"
            f"{rows}"
        )
    limits = "\n".join(f"- {limit}" for limit in LIMITS)
    truncated = ""
    dimensions = files.config("config_sentence_transformers.json").get("truncate_dim")
    if type(dimensions) is int:
        truncated = (
            f"\nVectors have the first {dimensions:,} dimensions and are not normalized "
            "afterwards. For cosine\nsimilarity, use `encode(..., normalize_embeddings=True)`.\n"
        )
    return f"""---
{license}library_name: sentence-transformers
tags: [sentence-transformers, sentence-similarity, feature-extraction, position-bias]
---

# {name}

{manifest.base} with less position bias: a low-rank adapter, trained by self-distillation without
labels and merged into the weights.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
```
{truncated}
## Training

The model learns to give a whole text the vector that it gave it sentence by sentence, each
sentence read alone. Texts are sentences in random order, each also in the reversed order.

- Base model: {manifest.base}
- Data: {manifest.corpus} (fingerprint {manifest.corpus_digest}), {manifest.n_sentences:,} sentences
  of half of its {manifest.n_documents:,} documents; the other half was held out
- Steps: {manifest.steps}{_why_early(manifest)}
- Recipe: {recipe}

Position effect on validation texts (cosine of a text with its sentences in the last third minus
with those in the first third), by step:

| step | loss | position effect |
|---|---|---|
{checks}

## Results

{measured}

## Limits

{limits}
"""


def _why_early(manifest: Manifest) -> str:
    if not manifest.steps:
        return " (the position effect was too small to remove: the weights are the base model's)"
    return " (stopped early: the effect was small enough)" if manifest.early else ""
