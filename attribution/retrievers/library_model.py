"""Loads models of sentence-transformers' classes other than SentenceTransformer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from poslens.attribution.retrievers.family import Placement
from poslens.attribution.retrievers.specs import RetrieverSpec


def load_model(
    library_class: str,
    spec: RetrieverSpec,
    folder: Path,
    place: Placement,
    *,
    uses_pooler: bool = False,
) -> Any:
    """A model of the class `library_class`, which truncates as `spec` states. Untyped, because the
    library is.

    Raises:
        ValueError: as `require_complete`.
    """
    import sentence_transformers  # here: slow to import

    model = getattr(sentence_transformers, library_class)(
        str(folder),
        device=str(place.device),
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"use_safetensors": True, "dtype": getattr(torch, place.precision)},
    )
    require_complete([model.transformers_model], uses_pooler=uses_pooler)
    if spec.max_length is not None:
        model.max_seq_length = spec.max_length
    return model


def require_complete(backbones: Iterable[nn.Module], *, uses_pooler: bool = False) -> None:
    """Refuse transformers models that lack weights, which transformers would replace with random
    numbers and a warning. Only a pooler may be missing, unless the model `uses_pooler`.

    Raises:
        ValueError: weights are missing.
    """
    missing = [
        name
        for backbone in backbones
        for name, parameter in backbone.named_parameters()
        if not getattr(parameter, "_is_hf_initialized", False)
        and (uses_pooler or "pooler." not in name)
    ]
    if missing:
        raise ValueError(f"{len(missing)} weights are missing, the first {missing[0]}")
