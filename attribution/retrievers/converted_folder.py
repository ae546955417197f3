"""Sentence-transformers folders made of other programs' files: what all conversions share."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from poslens.attribution.errors import UserError

_log = logging.getLogger(__name__)


@contextmanager
def conversion(title: str) -> Iterator[None]:
    """For a conversion: an error of a library becomes one sentence; a full disk stays an OSError.

    Raises:
        UserError: the installed libraries cannot convert the file.
        OSError: the disk is full.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # safetensors reports a full disk as an exception of its own.
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
    numbers, normalizes them and puts `prompts` before queries and documents."""
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    saved = {"1_Pooling": Pooling(width, pooling_mode=pooling), "2_Normalize": Normalize()}
    for path, module in saved.items():
        (folder / path).mkdir()
        module.save(str(folder / path))
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length})
    settings: dict[str, object] = {"similarity_fn_name": "cosine"}
    if prompts:
        settings["prompts"] = dict(prompts)
    write_json(folder / "config_sentence_transformers.json", settings)
    (folder / "README.md").write_text(card, encoding="utf-8")
    kinds = {path: type(module).__name__ for path, module in saved.items()}
    _write_modules(folder, "sentence_transformers.models", {"": "Transformer", **kinds})


def save_splade_modules(folder: Path, max_length: int, card: str) -> None:
    """Make the masked language model in `folder` a SparseEncoder with max pooling: w_t is the
    largest log(1 + relu(logit_t)) over the tokens of a text of at most `max_length` tokens."""
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    (folder / "1_SpladePooling").mkdir()
    SpladePooling("max").save(str(folder / "1_SpladePooling"))
    write_json(
        folder / "sentence_bert_config.json",
        {
            "max_seq_length": max_length,
            "transformer_task": "fill-mask",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "token_embeddings",
        },
    )
    write_json(
        folder / "config_sentence_transformers.json",
        {"model_type": "SparseEncoder", "similarity_fn_name": "dot"},
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    kinds = {"": "MLMTransformer", "1_SpladePooling": "SpladePooling"}
    _write_modules(folder, "sentence_transformers.sparse_encoder.models", kinds)


def _write_modules(folder: Path, package: str, kinds: Mapping[str, str]) -> None:
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{package}.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", modules)


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
