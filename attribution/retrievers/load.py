"""Load a retriever: safetensors only, frozen, on the GPU where there is one, and without code of
the model's own unless that was allowed by name."""

from __future__ import annotations

import logging
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attribution.errors import UserError
from attribution.retrievers import detect
from attribution.retrievers.bounded import DamagedFolder, header
from attribution.retrievers.dense import DenseRetriever
from attribution.retrievers.model_folder import Contents, contents
from attribution.retrievers.model_rules import has_code, require_known
from attribution.retrievers.packaged import require_minilm
from attribution.retrievers.resolve import comes_packaged, locate
from attribution.retrievers.specs import (
    CODE_SETTING,
    ModelFiles,
    RetrieverSpec,
    code_allowed,
    contents_of,
    runs_bidirectional,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LARGE_MODEL_BYTES = 2 << 30
"""Above this, a GPU that has bfloat16 loads the model in it; below, float32 costs nothing."""

ROOM = 0.8
"""Part of a GPU's memory that weights may take; the rest is for what is computed with them."""


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
    """Files, device and precision that `load` would use, without loading anything: every file
    that a library would read has been checked when this returns.

    Raises:
        UserError: the files are missing, damaged or pickled, name what is not read, need code
            that is not allowed, or the device is not there.
    """
    if spec.remote_code and not code_allowed(spec):
        raise _needs_code(spec)
    files = locate(spec)
    if spec.family != "lexical":
        for folder in _folders(files):
            _check(spec, folder, files.code)
    where = choose_device(device)
    weight_bytes = sum(p.stat().st_size for f in _folders(files) for p in contents(f).weights)
    return files, where, choose_precision(where, weight_bytes) if precision == "auto" else precision


def _folders(files: ModelFiles) -> list[Path]:
    return [files.folder] if files.query is None else [files.folder, files.query]


def _check(spec: RetrieverSpec, folder: Path, code: bool) -> None:
    """The one gate: nothing but model_folder has opened a file of the folder before."""
    if not folder.is_dir():
        raise UserError(
            f"{spec.name} is not in its folder any more: give the folder that holds it."
        )
    found = contents_of(spec.name, folder)
    if has_code(found) and not spec.bidirectional and not code:
        raise _needs_code(spec)
    _require_weights(spec, found)
    try:
        require_known(found, code=code)
    except DamagedFolder as error:
        raise UserError(f"{spec.name} {error}") from error


def _needs_code(spec: RetrieverSpec) -> UserError:
    return UserError(
        f"{spec.name} is defined by code in its repository, which PosLens runs only if told to: "
        f"read that code, then start with --allow-code {spec.base} or {CODE_SETTING}={spec.base}."
    )


def load(spec: RetrieverSpec, device: str = "auto", precision: str = "auto") -> Any:
    """Load `spec` with its weights frozen: a retriever of its family (see base.Retriever).

    Raises:
        UserError: the files are missing, pickled, or not a model that PosLens reads; the model
            needs code that is not allowed, or more memory than there is.
    """
    files, where, kind = plan(spec, device, precision)
    if comes_packaged(spec):
        require_minilm(ModelFiles(files.folder).places())
    spec = detect.settled(spec, files.folder)
    if spec.family != "dense":
        return detect.load(spec, files, where, kind)
    spread = must_spread(spec, files, where, kind, device)
    query_model: SentenceTransformer | None = None
    try:
        model = _load_model(spec, files.folder, where, kind, files.code, spread)
        if files.adapter is not None:
            _merge_adapter(model, files.adapter, spec.strength)
        if files.query is not None:
            query_model = _load_model(spec, files.query, where, kind, files.code, spread)
        elif routes := _routes(model):
            query_model, model = routes
    except UserError:
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("loading %s failed", spec.name)
        without = "" if files.code else " without remote code"
        raise UserError(
            f"{spec.name} could not be loaded ({type(error).__name__}): check that its folder "
            f"holds a complete sentence-transformers or transformers model{without}."
        ) from error
    for encoder in (model, query_model):
        if encoder is not None:
            _adjust(encoder, spec)
    return DenseRetriever(model, spec, kind, query_model)


def _load_model(
    spec: RetrieverSpec,
    folder: Path,
    device: torch.device,
    precision: str,
    code: bool,
    spread: bool,
) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    settings: dict[str, object] = {"use_safetensors": True, "dtype": getattr(torch, precision)}
    if spread:
        settings["device_map"] = "auto"
    model = SentenceTransformer(
        str(folder),
        device=None if spread else str(device),
        trust_remote_code=code,
        local_files_only=True,
        model_kwargs=settings,
    )
    _require_complete(model)
    if runs_bidirectional(spec):
        _unmask(spec, model)
    return model


def _routes(model: SentenceTransformer) -> tuple[SentenceTransformer, SentenceTransformer] | None:
    """The query and the document encoder of a model that sends them different ways (Router)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    router, *rest = model.children()
    if not isinstance(router, Router) or not {"query", "document"} <= set(router.sub_modules):
        return None
    query, document = (
        SentenceTransformer(
            modules=[*router.sub_modules[side].children(), *rest],
            device=str(model.device),
            prompts={name: text or "" for name, text in model.prompts.items()},
            similarity_fn_name=model.similarity_fn_name,
        )
        for side in ("query", "document")
    )
    return query, document


def _adjust(model: SentenceTransformer, spec: RetrieverSpec) -> None:
    """Length, similarity and pooling as the spec says, where it says."""
    from sentence_transformers import SimilarityFunction

    if spec.max_length is not None:
        model.max_seq_length = spec.max_length
    if spec.similarity is not None:
        model.similarity_fn_name = SimilarityFunction(spec.similarity)
    if spec.pooling is not None:
        _pool(model, spec)


def _pool(model: SentenceTransformer, spec: RetrieverSpec) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    found = [module for module in model if isinstance(module, Pooling)]
    if len(found) != 1:
        raise UserError(
            f"{spec.name} does not pool its tokens in a way that can be replaced: choose "
            f"{spec.base} without a pooling behind @."
        )
    (pooling,) = found
    # Several poolings side by side make a wider vector, which what follows was trained on.
    if not isinstance(pooling.pooling_mode, str):
        raise UserError(
            f"{spec.name} joins several poolings into one vector: choose {spec.base} without a "
            "pooling behind @."
        )
    pooling.pooling_mode = spec.pooling


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
        # What is pooled is the token that ends a text; without it the vector is another one.
        raise UserError(
            f"{spec.name} ends texts with a token that only its own code adds: start with "
            f"--allow-code {spec.base} to run that code."
        )


def must_spread(
    spec: RetrieverSpec, files: ModelFiles, device: torch.device, precision: str, asked: str
) -> bool:
    """Whether the weights take more than one GPU and so have to be spread over all of them.

    Raises:
        UserError: they take more memory than there is, or spreading them needs a package.
    """
    if device.type != "cuda":
        return False
    itemsize = getattr(torch, precision).itemsize
    needed = sum(_numbers(path) for f in _folders(files) for path in contents(f).weights) * itemsize
    index = device.index if device.index is not None else torch.cuda.current_device()
    if needed < ROOM * torch.cuda.get_device_properties(index).total_memory:
        return False
    count = torch.cuda.device_count() if asked == "auto" else 1
    memory = [torch.cuda.get_device_properties(i).total_memory for i in range(count)]
    if count < 2 or needed >= ROOM * sum(memory):
        smaller = "bfloat16 precision, " if precision == "float32" else ""
        raise UserError(
            f"{spec.name} takes {needed / 1e9:.0f} GB in {precision}, more than the graphics "
            f"memory here: choose {smaller}a smaller model, or POSLENS_DEVICE=cpu."
        )
    if find_spec("accelerate") is None:
        raise UserError(
            f"{spec.name} has to be spread over {count} GPUs, which needs the package accelerate: "
            "install it with `pip install accelerate`."
        )
    return True


def _numbers(path: Path) -> int:
    """How many numbers a safetensors file holds; reads its header alone."""
    return sum(math.prod(tensor["shape"]) for tensor in header(path).values())


def _require_complete(model) -> None:
    """transformers fills in with random numbers, and a warning, what the weights lack; only a
    pooler, which sentence-transformers does not use, may be missing."""
    from transformers import PreTrainedModel

    backbones = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    missing = [
        name
        for backbone in backbones
        for name, parameter in backbone.named_parameters()
        if not getattr(parameter, "_is_hf_initialized", False) and "pooler." not in name
    ]
    if missing:
        raise ValueError(f"{len(missing)} weights are missing, the first {missing[0]}")


def _merge_adapter(model, adapter: Path, strength: float | None) -> None:
    """Add the adapter's low-rank updates, scaled, to the weights: it costs nothing at use."""
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    backbone = model[0].auto_model
    # Saved without the device, so that loading asks neither a hub nor a GPU.
    merged = PeftModel.from_pretrained(backbone, str(adapter), local_files_only=True)
    if strength is not None:
        for module in merged.modules():
            if isinstance(module, LoraLayer):
                module.set_scale("default", strength)
    model[0].model = merged.merge_and_unload()


def _require_weights(spec: RetrieverSpec, found: Contents) -> None:
    if found.weights:
        return
    if found.pickles:
        raise UserError(
            f"{spec.name} has its weights only as a pickle ({found.pickles[0]}), which can run any "
            "code: convert them to safetensors first."
        )
    if spec.source.startswith("hub:"):
        raise UserError(
            f"{spec.name} has no safetensors weights in its repository, and others are not read: "
            "convert a copy of it and start PosLens with --model NAME=FOLDER."
        )
    raise UserError(f"{spec.name} has no weights in its folder: it needs a *.safetensors file.")
