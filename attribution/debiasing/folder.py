"""Debiased models on this machine: plain sentence-transformers folders below the data folder,
each with a manifest of its training. Nothing here loads a model."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.safe_files import parse_json, read_bytes
from poslens.attribution.retrievers.specs import RetrieverSpec, data_folder

MANIFEST = "debias.json"
ADAPTER = "adapter"
"""The adapter alone, within the folder; no library reads it there."""
MAX_BYTES = 1 << 20

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_MAX_TEXT, _MAX_OPTIONS = 200, 50
"""Maximum length of a text of a manifest, and maximum number of its recipe's options."""
_NUMBERS = re.compile(r"[+-]?\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The training of a debiased model. `training` identifies it: the base model's files and
    settings, the corpus and the recipe. `checks` are (step, mean loss, position effect) in order.
    """

    base: str
    training: str
    recipe: dict[str, float]
    corpus: str
    corpus_digest: str
    n_documents: int
    n_sentences: int
    steps: int
    early: bool
    checks: tuple[tuple[int, float, Estimate | None], ...]
    license: str = ""
    query_max_length: int | None = None
    max_length: int | None = None

    @property
    def words(self) -> str:
        """The training in one line, for captions."""
        recipe = ", ".join(f"{name}={value:.10g}" for name, value in self.recipe.items())
        return (
            f"{self.base} debiased in {counted(self.steps, 'step')} on "
            f"{counted(self.n_sentences, 'sentence')} of half of the {self.n_documents:,} "
            f"documents of {self.corpus} ({recipe})"
        )

    def write(self, folder: Path) -> None:
        """Write the manifest into the model's folder."""
        text = json.dumps(asdict(self), indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the model in `folder`; None if it has none or an invalid one."""
    path = folder / MANIFEST
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _parsed(path: Path, _changed: int) -> Manifest:
    config: dict[str, Any] = parse_json(read_bytes(path, MAX_BYTES), path.name)
    config["checks"] = tuple((int(s), float(x), _effect(e)) for s, x, e in config["checks"])
    manifest = Manifest(**config)
    # The folder can come from anyone, and captions show the training.
    texts = manifest.base, manifest.corpus, manifest.license, *manifest.recipe
    counts = manifest.n_documents, manifest.n_sentences, manifest.steps
    if not (
        all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts)
        and all(type(n) is int for n in counts)
        and all(isinstance(value, int | float) for value in manifest.recipe.values())
        and len(manifest.recipe) <= _MAX_OPTIONS
        and all(
            type(n) in (int, type(None)) for n in (manifest.max_length, manifest.query_max_length)
        )
    ):
        raise ValueError("not a manifest")
    return manifest


def _effect(stored: dict[str, Any] | str | None) -> Estimate | None:
    """A position effect. Earlier manifests have it as text, `-0.14 [-0.16, -0.12]`."""
    if not isinstance(stored, str):
        return None if stored is None else Estimate(**stored)
    numbers = [float(number) for number in _NUMBERS.findall(stored)]
    low, high = numbers[1:] or (None, None)
    return Estimate(numbers[0], low, high) if numbers else None


def root() -> Path:
    """The folder that contains all debiased models."""
    return data_folder() / "models" / "debiased"


def debiased_models() -> dict[str, RetrieverSpec]:
    """Every debiased model by name."""
    specs = {}
    try:
        folders = sorted(path for path in root().iterdir() if not path.name.startswith("."))
    except OSError:
        return {}
    for folder in folders:
        if (manifest := read_manifest(folder)) is not None:
            specs[folder.name] = RetrieverSpec(
                name=folder.name,
                title=f"{manifest.base}, debiased on {manifest.corpus}",
                family="dense",
                source=f"folder:{folder}",
                license=manifest.license,
                note=f"Debiased by self-distillation on half of {manifest.corpus}.",
                max_length=manifest.max_length,
                query_max_length=manifest.query_max_length,
                training=manifest.words,
            )
    return specs


def find(training: str) -> RetrieverSpec | None:
    """The model that this training produced; None if there is none."""
    for spec in debiased_models().values():
        manifest = read_manifest(folder_of(spec))
        if manifest is not None and manifest.training == training:
            return spec
    return None


def folder_of(spec: RetrieverSpec) -> Path:
    """The folder of a debiased model."""
    return Path(spec.source.removeprefix("folder:"))


def new_folder(base: str) -> Path:
    """An unused folder path, named after the base model."""
    stem = _NOT_IN_NAMES.sub("-", base.rpartition("/")[2]).strip("-.") + "-debiased"
    folder = root() / stem
    number = 1
    while folder.exists():
        number += 1
        folder = root() / f"{stem}-{number}"
    return folder
