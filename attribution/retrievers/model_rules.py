"""What the configuration in a model's folder may contain.

sentence-transformers, transformers and peft import classes and functions that configuration files
name, follow names of other folders and repositories, and build models of any stated size. So every
file is compared with what PosLens supports before one of these libraries reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from poslens.attribution.retrievers.model_folder import Contents, all_texts
from poslens.attribution.retrievers.safe_files import DamagedFolder, shapes

MODULES = frozenset(
    "Transformer MLMTransformer Pooling Normalize Dense Dropout LayerNorm "
    "WeightedLayerPooling Router Asym SpladePooling MultiVectorMask "
    "HierarchicalTokenPooling LogitScore".split()
)
"""Classes of sentence-transformers that a `modules.json` or a Router may name."""

CALIBRATED_TRANSFORMER = (
    "poslens.attribution.retrievers.calibrated_transformer.CalibratedTransformer"
)
"""The only class of PosLens that a `modules.json` may name: that of exported calibrated models."""

TRANSFORMERS = frozenset({"Transformer", "MLMTransformer", "CalibratedTransformer"})

_MODULE = re.compile(
    r"(?:sentence_transformers(?:\.(?:models|modules|base|sentence_transformer|sparse_encoder|"
    r"cross_encoder|multi_vector_encoder|transformer|mlm_transformer|pooling|normalize|dense|"
    r"dropout|layer_norm|weighted_layer_pooling|router|asym|splade_pooling|multi_vector_mask|"
    r"token_pooling|logit_score|"
    r"Transformer|MLMTransformer|Pooling|Normalize|Dense|Dropout|LayerNorm|WeightedLayerPooling|"
    r"Router|Asym|SpladePooling))*|pylate\.models\.Dense)\.(\w+)",
    re.ASCII,
)

ACTIVATIONS = frozenset(
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid "
    "LogSoftmax Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmin Softplus "
    "Softshrink Softsign Tanh Tanhshrink".split()
)
"""Classes of torch.nn that a configuration may name as an activation, and `Identity`."""

_ACTIVATION = re.compile(
    r"torch\.nn\.(?:modules\.)?(?:activation\.)?(\w+)|torch\.nn\.modules\.linear\.(Identity)",
    re.ASCII,
)
DTYPE = re.compile(r"torch\.(?:b?float\d*|half|double|u?int\d*|bool)", re.ASCII)
IMPORTABLE = re.compile(r"(?:torch|sentence_transformers|pylate)\.[\w.]+", re.ASCII)
"""Names in a configuration that the libraries import even without `trust_remote_code`."""

ATTENTION = frozenset({"eager", "sdpa", "flex_attention", "flash_attention_2"})

LOADING = frozenset(
    "trust_remote_code torch_dtype dtype attn_implementation padding_side "
    "truncation_side model_max_length add_pooling_layer num_labels use_fast "
    "do_lower_case low_cpu_mem_usage".split()
)
"""Arguments that a `sentence_bert_config.json` may pass on to transformers; others could select
other files, formats or repositories."""

MOST = (
    (re.compile(r"labels?$"), 100_000),
    (re.compile(r"layers$|blocks$|depth"), 2_048),
    (re.compile(r"position|^n_ctx$"), 1 << 26),
    (re.compile(r"^(?:num|n)_"), 1 << 20),
)
"""Largest numbers of a configuration by name; the first pattern that matches applies. Above them,
building the model, before any weight is read, takes hours or all memory."""

MOST_OF_ALL = 1 << 31
MOST_FEATURES = 1 << 20


def require_known(contents: Contents, *, code: bool = False) -> None:
    """Refuse a folder whose configuration names anything that PosLens does not support.

    With `code`, the model's own code was allowed by name and may name and do anything, so only
    sizes and types are checked. `has_code` tells whether there is such code.

    Raises:
        DamagedFolder: states what the configuration names, and where.
    """
    for place, config in contents.configs.items():
        name = PurePosixPath(place).name
        if name in ("modules.json", "model.safetensors.index.json"):
            continue
        if not isinstance(config, dict):
            raise DamagedFolder(f"has a {place} without settings: restore the file.")
        if not code:
            _require_names(place, config)
        _require_numbers(place, config)
    if not code:
        _require_safetensors(contents)
        for kind, place in contents.modules:
            _require_module(kind, place, contents)
    _require_settings(contents, code)
    for path in contents.weights:
        shapes(path)


def has_code(contents: Contents) -> bool:
    """Whether any configuration of the folder refers to code in the folder that defines a class.

    transformers silently ignores such a reference if it knows the model's type itself, and then
    computes something else, such as a bidirectional model with a causal mask.
    """
    return any(_auto_maps(contents))


def code_references(contents: Contents) -> list[str]:
    """The folder's references to classes defined by code, as `file.Class` or
    `repository--file.Class`."""
    items = (item for value in _auto_maps(contents) for _, item in _items(value))
    return [item for item in items if isinstance(item, str)]


def _auto_maps(contents: Contents) -> Iterator[Any]:
    for config in contents.configs.values():
        yield from (value for key, value in _items(config) if key == "auto_map")


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Every (name, value) in the value of a JSON file, at any depth; items of a list have the name
    of the list."""
    waiting = [("", value)]
    while waiting:
        name, item = waiting.pop()
        yield name, item
        if isinstance(item, dict):
            waiting += [(str(key), below) for key, below in item.items()]
        elif isinstance(item, list):
            waiting += [(name, below) for below in item]


# -- names -------------------------------------------------------------------------------------


def is_activation(name: str) -> bool:
    """Whether `name` is the full name of an activation that may be imported, or a plain name, which
    transformers looks up in a table (`gelu`)."""
    if match := _ACTIVATION.fullmatch(name):
        return (match[1] or match[2]) in ACTIVATIONS | {"Identity"}
    return re.fullmatch(r"\w*", name, re.ASCII) is not None


def is_module(name: str) -> bool:
    """Whether `name` is a module of sentence-transformers that PosLens supports, or
    `CALIBRATED_TRANSFORMER`."""
    if name == CALIBRATED_TRANSFORMER:
        return True
    match = _MODULE.fullmatch(name)
    return match is not None and match[1] in MODULES


def _require_names(place: str, config: dict[str, Any]) -> None:
    if PurePosixPath(place).name == "adapter_config.json":
        raise DamagedFolder(
            "is an adapter, which needs the model that its adapter_config.json names: merge it "
            "into that model and use the merged model's folder."
        )
    for key, value in _items(config):
        if key == "quantization_config" and value:
            raise DamagedFolder(
                "has quantized weights, which PosLens does not support: use a copy in floating "
                "point."
            )
        if key in ("transformers_weights", "tokenizer_name_or_path") and value is not None:
            raise DamagedFolder(f"refers to other files in {place} ({key}): remove that setting.")
        if key.endswith(("attn_implementation", "experts_implementation")) and not (
            isinstance(value, dict)
            or value in (None, "grouped_mm", "batched_mm")
            or value in ATTENTION
        ):
            raise DamagedFolder(_unknown(place, value))
        if isinstance(value, str):
            _require_text(place, key, value)
    if PurePosixPath(place).name == "tokenizer_config.json":
        versions = config.get("fast_tokenizer_files", [])
        if not isinstance(versions, list) or not all(
            isinstance(version, str) and re.fullmatch(r"tokenizer(\.[\w-]+)*\.json", version)
            for version in versions
        ):
            raise DamagedFolder(_unknown(place, "fast_tokenizer_files"))


def _require_text(place: str, key: str, value: str) -> None:
    """Refuse an unknown activation, and any other text that has the form of a name to import."""
    if "activation_f" in key or key == "sbert_ce_default_activation_function":
        if not is_activation(value):
            raise DamagedFolder(_unknown(place, value))
    elif IMPORTABLE.fullmatch(value) and not (
        DTYPE.fullmatch(value) or is_module(value) or is_activation(value)
    ):
        raise DamagedFolder(_unknown(place, value))


def _unknown(place: str, value: object) -> str:
    return (
        f"names {str(value)[:80]!a} in {place}, which PosLens neither imports nor runs: use a "
        "model that transformers and sentence-transformers define themselves."
    )


def _require_module(kind: str, place: str, contents: Contents) -> None:
    if not is_module(kind):
        raise DamagedFolder(
            f"has a module {kind[:80]!a}, which PosLens does not support: use a transformer with "
            "the pooling, dense and normalizing layers of sentence-transformers."
        )
    last = kind.rpartition(".")[2]
    if last in TRANSFORMERS:
        return
    config = contents.config(place, "config.json")
    if last == "Dense":
        tensors = [t for path in contents.weights_in(place) for t in shapes(path).values()]
        if [config.get("out_features"), config.get("in_features")] not in tensors:
            raise DamagedFolder(
                f"has a dense layer in {place or 'its folder'} whose weights don't have the size "
                "in its config.json: restore both files."
            )
    for key, value in config.items():
        sized = key in ("dimension", "embedding_dimension", "word_embedding_dimension")
        if sized and value is not None:
            _require_whole(place, key, value, MOST_FEATURES)


def _require_safetensors(contents: Contents) -> None:
    """Refuse a folder in which a module would find a pickle instead of its weights."""
    for place in contents.pickles:
        if "/" in place or not contents.weights:
            raise DamagedFolder(
                f"has only pickled weights ({place}), which can run any code: convert them to "
                "safetensors first."
            )


# -- sizes and types ---------------------------------------------------------------------------


def _require_numbers(place: str, config: dict[str, Any]) -> None:
    if PurePosixPath(place).name not in ("config.json", "generation_config.json"):
        return
    for key, value in _items(config):
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        most = next((limit for name, limit in MOST if name.search(key)), MOST_OF_ALL)
        if abs(value) > most:
            raise DamagedFolder(
                f"has {key[:40]!a} {value if abs(value) < 10**15 else 'beyond all bounds'} in "
                f"{place}, but PosLens allows at most {most}: restore the file."
            )


def _require_whole(place: str, key: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise DamagedFolder(
            f"has {key} {ascii(value)[:40]} in {place or 'its folder'}, which is not a whole "
            f"number from 1 to {most}: correct it."
        )


def _require_settings(contents: Contents, code: bool) -> None:
    folders = [place for kind, place in contents.modules if kind.rpartition(".")[2] in TRANSFORMERS]
    if not contents.modules:
        folders = [""]
    for place, config in contents.configs.items():
        name = PurePosixPath(place).name
        if name == "config_sentence_transformers.json":
            _require_prompts(place, config)
        elif name.startswith("sentence_") and name.endswith("_config.json"):
            _require_reading(place, config, code)
        elif name == "tokenizer_config.json":
            _require_type(place, config, "tokenizer_class", (str,), "a name")
            _require_type(place, config, "model_max_length", (int, float), "a number")
    for folder in folders:
        place = str(PurePosixPath(folder, "config.json"))
        config = contents.config(place)
        kinds = config.get("architectures")
        if kinds is not None and not (isinstance(kinds, list) and all_texts(kinds)):
            raise DamagedFolder(
                f"has architectures in {place} that are not a list of names: {_CORRECT}"
            )
        kind = config.get("model_type")
        if kind is not None and not isinstance(kind, str):
            raise DamagedFolder(f"has a model_type in {place} that is not a name: {_CORRECT}")
        if kind is not None and not code and kind not in COMMON and kind not in text_models():
            raise DamagedFolder(
                f"is of type {kind[:40]!a} according to its {place}, which is not a text model of "
                "transformers: use a text model."
            )


_CORRECT = "correct it."


def _require_type(
    place: str, config: Mapping[str, Any], key: str, kinds: tuple[type, ...], words: str
) -> None:
    value = config.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise DamagedFolder(f"has {key} in {place} that is not {words}: {_CORRECT}")


def _require_prompts(place: str, config: dict[str, Any]) -> None:
    prompts = config.get("prompts")
    if prompts is not None and not (
        isinstance(prompts, dict)
        and all(text is None or isinstance(text, str) for text in prompts.values())
    ):
        raise DamagedFolder(f"has prompts in {place} that are not strings: {_CORRECT}")
    for key in ("default_prompt_name", "similarity_fn_name", "model_type"):
        _require_type(place, config, key, (str,), "a name")


def _require_reading(place: str, config: dict[str, Any], code: bool) -> None:
    """Check the settings by which a module of sentence-transformers loads its transformer and reads
    texts."""
    for key in ("max_seq_length", "query_length", "document_length"):
        if config.get(key) is not None:
            _require_whole(place, key, config[key], 1 << 26)
    arguments = "model_args tokenizer_args config_args model_kwargs processor_kwargs config_kwargs"
    for key in arguments.split():
        given = config.get(key, {})
        if not isinstance(given, dict):
            raise DamagedFolder(f"has {key} in {place} that are not settings: {_CORRECT}")
        if not code and (others := sorted(set(given) - LOADING)):
            raise DamagedFolder(_unknown(place, others[0]))
    modalities = config.get("modality_config", {})
    tables: list[Any] = list(modalities.values()) if isinstance(modalities, dict) else [None]
    if not all(isinstance(table, dict) for table in tables):
        raise DamagedFolder(f"has a modality_config in {place} that is not a table: {_CORRECT}")
    for each in tables:
        if not code and each.get("method") not in ("forward", "get_text_features"):
            raise DamagedFolder(_unknown(place, each.get("method")))


COMMON = frozenset(
    {"bert", "distilbert", "modernbert", "mpnet", "qwen2", "qwen3", "roberta", "t5", "xlm-roberta"}
)
"""Types of most retrievers, all of them among `text_models`, which takes seconds to import."""


@cache
def text_models() -> frozenset[str]:
    """The model types of transformers that read only text."""
    from transformers.models.auto import modeling_auto as auto

    tables = (
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )
    # That type consists of two models that its configuration names.
    return frozenset().union(*tables) - {"encoder-decoder"}
