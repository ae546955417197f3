"""The families besides dense encoders: which class of sentence-transformers loads each, and how a
folder says which it is."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attribution.errors import UserError
from attribution.retrievers import seq2seq
from attribution.retrievers.bounded import DamagedFolder
from attribution.retrievers.model_folder import contents
from attribution.retrievers.specs import ModelFiles, RetrieverSpec, presets

_CLASSES = {
    "late_interaction": "MultiVectorEncoder",
    "cross_encoder": "CrossEncoder",
    "sparse": "SparseEncoder",
}
_KINDS = {name: family for family, name in _CLASSES.items()}


def load(spec: RetrieverSpec, files: ModelFiles, device: torch.device, precision: str) -> Any:
    """The retriever of `spec`'s family, from its files.

    Raises:
        UserError: an unknown family, or files that are none of it.
    """
    if spec.family == "lexical":
        from attribution.retrievers.lexical import LexicalRetriever

        return LexicalRetriever(spec, files)
    if spec.family not in _CLASSES:
        raise UserError(f"{spec.name} is of family {spec.family!r}, which PosLens does not read.")
    try:
        if spec.family == "cross_encoder" and seq2seq.fits(files.folder):
            return seq2seq.load(spec, files.folder, device, precision)
        model = _model(spec, files, device, precision)
    except UserError:
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("loading %s failed", spec.name)
        raise UserError(
            f"{spec.name} could not be loaded as a {spec.family.replace('_', '-')} model "
            f"({type(error).__name__}): check that its folder holds a complete one without remote "
            "code."
        ) from error
    if spec.max_length is not None:
        model.max_seq_length = spec.max_length
    return _retriever(spec.family)(model, spec, precision)


def _retriever(family: str) -> Any:
    if family == "cross_encoder":
        from attribution.retrievers.cross_encoder import CrossEncoderRetriever

        return CrossEncoderRetriever
    if family == "sparse":
        from attribution.retrievers.sparse import SparseRetriever

        return SparseRetriever
    from attribution.retrievers.late_interaction import LateInteractionRetriever

    return LateInteractionRetriever


def _model(spec: RetrieverSpec, files: ModelFiles, device: torch.device, precision: str) -> Any:
    import sentence_transformers

    _require_head(spec, files.folder)
    model = getattr(sentence_transformers, _CLASSES[spec.family])(
        str(files.folder),
        device=str(device),
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"use_safetensors": True, "dtype": getattr(torch, precision)},
    )
    missing = [
        name
        for name, parameter in model.transformers_model.named_parameters()
        if not getattr(parameter, "_is_hf_initialized", False) and _is_used(name, spec.family)
    ]
    if missing:
        raise ValueError(f"{len(missing)} weights are missing, the first {missing[0]}")
    return model


def _is_used(name: str, family: str) -> bool:
    """Whether a weight that is missing would be made up and used: poolers are read by
    classification heads alone."""
    return family == "cross_encoder" or "pooler." not in name


def _require_head(spec: RetrieverSpec, folder: Path) -> None:
    """sentence-transformers makes up a random projection for a bare encoder."""
    if spec.family == "late_interaction" and not (
        (folder / "modules.json").is_file() or "HF_ColBERT" in _architectures(folder)
    ):
        raise UserError(
            f"{spec.name} has no projection of its token vectors: give the folder of a trained "
            "late-interaction model."
        )


def settled(spec: RetrieverSpec, folder: Path) -> RetrieverSpec:
    """`spec` with the family that its files show: what was named by a hub id alone counts as dense
    until they have come.

    Raises:
        UserError: a pooling was chosen for a model that pools nothing.
    """
    if not spec.source.startswith("hub:") or spec.family != "dense" or spec.base in presets():
        return spec
    family = family_of(folder)
    if family != "dense" and spec.pooling is not None:
        raise UserError(
            f"{spec.base} is a {family.replace('_', '-')} model, which has no pooling to replace: "
            f"leave out what stands behind {spec.base}."
        )
    return replace(spec, family=family)


def family_of(folder: Path) -> str:
    """What the files of a folder say of its family; dense where they say nothing."""
    kind = _config(folder, "config_sentence_transformers.json").get("model_type")
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind]
    architectures = _architectures(folder)
    if "HF_ColBERT" in architectures:
        return "late_interaction"
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        return "cross_encoder"
    if seq2seq.fits(folder):
        return "cross_encoder"
    return "dense"


def _config(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = contents(folder).config(name)
    except DamagedFolder:  # said when it is loaded
        return {}
    return found if isinstance(found, dict) else {}


def _architectures(folder: Path) -> list[str]:
    found = _config(folder, "config.json").get("architectures")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
