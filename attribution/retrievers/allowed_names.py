"""Classes, functions and settings that the configuration of a model may name: the libraries import
them or pass them on, and PosLens supports them."""

from __future__ import annotations

import re

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
