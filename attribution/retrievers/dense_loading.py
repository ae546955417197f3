"""Loads dense encoders: sentence-transformers models with their adapter, separate query encoder and
pooling according to the spec, distributed over several GPUs if one is too small."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer.modules import Pooling, Router

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.calibrated_attention import ROWS, Rows, attach
from poslens.attribution.retrievers.calibrated_transformer import CalibratedTransformer
from poslens.attribution.retrievers.family import Placement
from poslens.attribution.retrievers.library_model import require_complete
from poslens.attribution.retrievers.model_rules import CALIBRATED_TRANSFORMER
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec, runs_bidirectional

ROOM = 0.8
"""Part of a GPU's memory that weights may take; the rest is for computations."""


def load_encoders(
    spec: RetrieverSpec, files: ModelFiles, place: Placement
) -> tuple[SentenceTransformer, SentenceTransformer | None]:
    """The document encoder, and the query encoder if there is a separate one.

    Raises:
        UserError: the model needs more memory than there is, its pooling or attention cannot be
            changed as requested, or its vectors have too few dimensions to truncate.
        torch.OutOfMemoryError: the model needs more memory than is free.
    """
    spread = must_spread(spec, files, place)
    query_model: SentenceTransformer | None = None
    model = _load_model(spec, files.folder, place, files.code, spread)
    if files.adapter is not None:
        merge_adapter(model, files.adapter, spec.strength)
    if files.query is not None:
        query_model = _load_model(spec, files.query, place, files.code, spread)
    elif routes := encoders_by_side(model):
        query_model, model = routes
    for encoder in (model, query_model):
        if encoder is not None:
            _adjust(encoder, spec)
    return model, query_model


def _load_model(
    spec: RetrieverSpec, folder: Path, place: Placement, code: bool, spread: bool
) -> SentenceTransformer:
    from transformers import PreTrainedModel

    settings: dict[str, object] = {
        "use_safetensors": True,
        "dtype": getattr(torch, place.precision),
    }
    if spread:
        settings["device_map"] = "auto"
    # The only class of PosLens that a folder may name is passed in, not imported by its name.
    model = SentenceTransformer._load_with_module_classes(
        str(folder),
        {CALIBRATED_TRANSFORMER: CalibratedTransformer},
        device=None if spread else str(place.device),
        trust_remote_code=code,
        local_files_only=True,
        model_kwargs=settings,
    )
    # sentence-transformers does not use the poolers of the transformers models in it.
    require_complete(m for m in model.modules() if isinstance(m, PreTrainedModel))
    if runs_bidirectional(spec):
        _unmask(spec, model)
    return model


def encoders_by_side(
    model: SentenceTransformer,
) -> tuple[SentenceTransformer, SentenceTransformer] | None:
    """The query and the document encoder of a model with a Router; None without one."""
    router, *rest = model.children()
    if not isinstance(router, Router) or not {"query", "document"} <= set(router.sub_modules):
        return None
    query, document = (
        SentenceTransformer(
            modules=[*router.sub_modules[side].children(), *rest],
            device=str(model.device),
            prompts={name: text or "" for name, text in model.prompts.items()},
            similarity_fn_name=model.similarity_fn_name,
            truncate_dim=model.truncate_dim,
        )
        for side in ("query", "document")
    )
    return query, document


def _adjust(model: SentenceTransformer, spec: RetrieverSpec) -> None:
    """Apply length, similarity, pooling and dimensions of the spec, if it sets them."""
    if spec.max_length is not None:
        model.max_seq_length = spec.max_length
    if spec.similarity is not None:
        model.similarity_fn_name = SimilarityFunction(spec.similarity)
    if spec.pooling is not None:
        _pool(model, spec)
    if spec.dimensions is not None:
        _truncate(model, spec.name, spec.dimensions)
    if spec.calibration is not None:
        attach(model[0], spec.calibration, rows_of(model, spec.name), spec.name)


def rows_of(model: SentenceTransformer, name: str) -> Rows:
    """Which rows of attention to calibrate, according to the model's pooling.

    Raises:
        UserError: its pooling is not supported.
    """
    modes = [module.pooling_mode for module in model if isinstance(module, Pooling)]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in ROWS:
        raise UserError(
            f"{name} has a pooling for which attention can't be calibrated: choose a model with "
            "first-token, mean or last-token pooling."
        )
    return ROWS[modes[0]]


def _pool(model: SentenceTransformer, spec: RetrieverSpec) -> None:
    poolings = [module for module in model if isinstance(module, Pooling)]
    if len(poolings) != 1:
        raise UserError(
            f"{spec.name} has a pooling that can't be replaced: use {spec.base} without a pooling "
            "suffix."
        )
    (pooling,) = poolings
    # Several poolings at once give a wider vector, which later modules were trained on.
    if not isinstance(pooling.pooling_mode, str):
        raise UserError(
            f"{spec.name} concatenates several poolings: use {spec.base} without a pooling suffix."
        )
    pooling.pooling_mode = spec.pooling


def _truncate(model: SentenceTransformer, name: str, dimensions: int) -> None:
    model.truncate_dim = None
    width = model.get_embedding_dimension()
    if width is not None and dimensions >= width:
        raise UserError(
            f"{name} has vectors of {width:,} dimensions: use fewer than that instead of "
            f"@{dimensions}d."
        )
    model.truncate_dim = dimensions


def _unmask(spec: RetrieverSpec, model: SentenceTransformer) -> None:
    """Let every token see all others, as the model's own code does."""
    backbone: Any = model.transformers_model
    backbone.config.is_causal = False
    for module in backbone.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    tokenizer: Any = model.tokenizer
    ids = tokenizer("a")["input_ids"]
    if getattr(tokenizer, "add_eos_token", False) and ids[-1] != tokenizer.eos_token_id:
        # The last token is pooled; without the end token the vector would be different.
        raise UserError(
            f"{spec.name} ends texts with a token that only its own code adds: add --allow-code "
            f"{spec.base} to run that code."
        )


def must_spread(spec: RetrieverSpec, files: ModelFiles, place: Placement) -> bool:
    """Whether the weights need more than one GPU and must be distributed over all of them.

    Raises:
        UserError: they need more memory than there is, or distributing them needs a package.
    """
    device, precision = place.device, place.precision
    if device.type != "cuda":
        return False
    needed = files.weight_bytes(getattr(torch, precision).itemsize)
    index = device.index if device.index is not None else torch.cuda.current_device()
    if needed < ROOM * torch.cuda.get_device_properties(index).total_memory:
        return False
    count = torch.cuda.device_count() if place.asked == "auto" else 1
    memory = [torch.cuda.get_device_properties(i).total_memory for i in range(count)]
    if count < 2 or needed >= ROOM * sum(memory):
        smaller = "bfloat16 precision, " if precision == "float32" else ""
        raise UserError(
            f"{spec.name} needs {needed / 1e9:.0f} GB in {precision}, more than the memory of this "
            f"machine's GPUs: choose {smaller}a smaller model, or POSLENS_DEVICE=cpu."
        )
    if find_spec("accelerate") is None:
        raise UserError(
            f"{spec.name} must be distributed over {count} GPUs, which needs a package: run `pip "
            "install accelerate`."
        )
    return True


def merge_adapter(model: Any, adapter: Path, strength: float | None) -> None:
    """Add the adapter's scaled low-rank updates to the weights, so that inference costs no more."""
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    # A deprecation warning between two libraries, which users cannot act on.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
    backbone = model[0].auto_model
    # Saved without the device, so that loading needs neither a hub nor a GPU.
    merged = PeftModel.from_pretrained(backbone, str(adapter), local_files_only=True)
    if strength is not None:
        for module in merged.modules():
            if isinstance(module, LoraLayer):
                module.set_scale("default", strength)
    model[0].model = merged.merge_and_unload()
