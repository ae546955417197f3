"""Load a retriever: safetensors only, no remote code, frozen, on the GPU where there is one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from attribution.errors import UserError
from attribution.retrievers import families
from attribution.retrievers.dense import DenseRetriever
from attribution.retrievers.registry import ModelFiles, RetrieverSpec, locate

LARGE_MODEL_BYTES = 2 << 30
"""Above this, a GPU that has bfloat16 loads the model in it; below, float32 costs nothing."""


def choose_device(asked: str = "auto") -> torch.device:
    """`auto`: the first GPU, else the CPU.

    Raises:
        UserError: the device asked for is not there.
    """
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        if torch.device(asked).type == "meta":
            raise RuntimeError("no numbers live there")
        return torch.zeros(1, device=asked).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"There is no device {asked!r} here: use auto, cpu, cuda or cuda:N."
        ) from error


def choose_precision(device: torch.device, weight_bytes: int) -> str:
    """float32, or bfloat16 for a large model on a GPU that has it."""
    if (
        device.type == "cuda"
        and weight_bytes > LARGE_MODEL_BYTES
        and torch.cuda.is_bf16_supported()
    ):
        return "bfloat16"
    return "float32"


def plan(
    spec: RetrieverSpec, device: str = "auto", precision: str = "auto"
) -> tuple[ModelFiles, torch.device, str]:
    """Files, device and precision that `load` would use, without loading anything.

    Raises:
        UserError: the files are missing or pickled, or the device is not there.
    """
    files = locate(spec)
    if spec.family != "lexical":
        _require_safetensors(spec, files)
    where = choose_device(device)
    weight_bytes = sum(p.stat().st_size for p in files.folder.rglob("*.safetensors"))
    return files, where, choose_precision(where, weight_bytes) if precision == "auto" else precision


def load(spec: RetrieverSpec, device: str = "auto", precision: str = "auto") -> Any:
    """Load `spec` with its weights frozen: a retriever of its family (see base.Retriever).

    Raises:
        UserError: the files are missing, pickled, or not a model that PosLens reads.
    """
    files, where, kind = plan(spec, device, precision)
    if spec.family != "dense":
        return families.load(spec, files, where, kind)
    families.require_dense(spec, files.folder)
    try:
        model = _load_model(files, where, kind)
    except UserError:
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("loading %s failed", spec.name)
        raise UserError(
            f"{spec.name} could not be loaded ({type(error).__name__}): check that its folder "
            "holds a complete sentence-transformers or transformers model without remote code."
        ) from error
    if spec.max_length is not None:
        model.max_seq_length = spec.max_length
    return DenseRetriever(model, spec, kind)


def _load_model(files: ModelFiles, device: torch.device, precision: str):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(files.folder),
        device=str(device),
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"use_safetensors": True, "dtype": getattr(torch, precision)},
    )
    _require_complete(model)
    if files.adapter is not None:
        _merge_adapter(model, files.adapter)
    return model


def _require_complete(model) -> None:
    """transformers fills in with random numbers, and a warning, what the weights lack; only a
    pooler, which sentence-transformers does not use, may be missing."""
    backbone = model.transformers_model
    missing = [
        name
        for name, parameter in (backbone.named_parameters() if backbone is not None else ())
        if not getattr(parameter, "_is_hf_initialized", False) and "pooler." not in name
    ]
    if missing:
        raise ValueError(f"{len(missing)} weights are missing, the first {missing[0]}")


def _merge_adapter(model, adapter: Path) -> None:
    """Add the adapter's low-rank updates to the weights, so that it costs nothing at use."""
    from peft import PeftModel

    backbone = model[0].auto_model
    # Saved without the device, so that loading asks neither a hub nor a GPU.
    merged = PeftModel.from_pretrained(backbone, str(adapter), local_files_only=True)
    model[0].model = merged.merge_and_unload()


def _require_safetensors(spec: RetrieverSpec, files: ModelFiles) -> None:
    if not files.folder.is_dir():
        raise UserError(
            f"{spec.name} is not in its folder any more: give the folder that holds it."
        )
    if any(files.folder.rglob("*.safetensors")):
        return
    pickled = [
        p.name
        for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt")
        for p in files.folder.rglob(pattern)
    ]
    if pickled:
        raise UserError(
            f"{spec.name} has its weights only as a pickle ({pickled[0]}), which can run any code: "
            "convert them to safetensors first."
        )
    raise UserError(f"{spec.name} has no weights in its folder: it needs a *.safetensors file.")
