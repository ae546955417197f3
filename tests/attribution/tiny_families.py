"""Random models of the families besides dense ones, saved as sentence-transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask


def late_interaction(raw: Path, folder: Path, **options: Any) -> Path:
    """A ColBERT on the transformers model in `raw`: query expansion, a skip list, a projection
    without bias, vectors of length 1."""
    torch.manual_seed(3)
    expansion = options.pop("expansion", {"strategy": "fixed", "length": 12})
    reader = Transformer(str(raw), query_expansion=expansion, document_length=options.pop(
        "document_length", 64))  # fmt: skip
    projection = Dense(
        32, 16, bias=False, activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings", module_output_name="token_embeddings",
    )  # fmt: skip
    modules = [
        reader,
        projection,
        Normalize(module_input_name="token_embeddings", module_output_name="token_embeddings"),
        MultiVectorMask(skiplist_words=[".", ","]),
    ]
    MultiVectorEncoder(modules=modules, **options).save_pretrained(str(folder))
    return folder
