"""Dense retrievers of a given size with random weights: they need no download, and what a pass
takes does not depend on what the weights are.

The weights are drawn where they are to stand, in their precision. The tokenizer is MiniLM's, so
that texts are tokenized and placed as those of a real model are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.resolve import locate, resolve
from poslens.attribution.retrievers.specs import RetrieverSpec

POSITIONS = 8194
"""Positions of every model: 8,192 tokens and two that RoBERTa's kin would reserve."""


@dataclass(frozen=True, slots=True)
class Size:
    """An architecture: transformers' name of it, its pooling and its configuration."""

    name: str
    model_type: str
    pooling: str
    settings: Mapping[str, Any]

    def work(self, document: int, query: int) -> float:
        """Operations of saliency of one pair, both sides, of so many tokens: for each side a
        forward pass and a backward pass to the inputs.

        A pass takes 2 operations for each weight and token, and 4 T H for each token and layer in
        attention; backward through attention is twice that. Of causal attention half is counted.
        """
        return self.gradient(document) + self.gradient(query)

    def gradient(self, tokens: int) -> float:
        """Operations of one text's share of that."""
        config = self.config()
        width = config.num_attention_heads * (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        attention = 4.0 * config.num_hidden_layers * tokens**2 * width
        if self.pooling == "lasttoken":
            attention /= 2
        return float(4 * self.weights() * tokens + 3 * attention)

    def weights(self) -> int:
        """Weights that take part in products: all but tables that are looked up, and norms."""
        with torch.device("meta"):
            model = AutoModel.from_config(self.config())
        return sum(
            module.weight.numel()
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and "pooler" not in name
        )

    def config(self, **changed: Any) -> Any:
        """transformers' configuration."""
        return AutoConfig.for_model(
            self.model_type, max_position_embeddings=POSITIONS, **{**self.settings, **changed}
        )


def _qwen3(hidden: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    return {
        "vocab_size": 151_669,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": inner,
    }


SIZES = (
    Size(
        "MiniLM-sized",
        "bert",
        "mean",
        {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        },
    ),
    # As Qwen3-Embedding-0.6B and -8B are configured.
    Size("0.6B", "qwen3", "lasttoken", _qwen3(1024, 28, 16, 3072)),
    Size("8B", "qwen3", "lasttoken", _qwen3(4096, 36, 32, 12288)),
)


def build(size: Size, device: str, precision: str) -> DenseRetriever:
    """A retriever of that size on `device`, frozen, in `precision` (a name of torch's)."""
    torch.manual_seed(7)
    with torch.device(device):
        backbone: Any = AutoModel.from_config(size.config(), dtype=getattr(torch, precision))
    # sentence-transformers builds its module from a folder, so it gets a small one of the same
    # architecture; what it holds is replaced.
    small = size.config(
        num_hidden_layers=1, hidden_size=96, num_attention_heads=12, intermediate_size=8
    )
    spec = resolve("MiniLM")
    tokenizer = AutoTokenizer.from_pretrained(
        locate(spec).folder, local_files_only=True, trust_remote_code=False
    )
    with tempfile.TemporaryDirectory() as folder:
        AutoModel.from_config(small).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        reader = Transformer(folder, max_seq_length=POSITIONS - 2)
    reader.model = backbone.eval()
    pooling = Pooling(backbone.config.hidden_size, size.pooling)
    model = SentenceTransformer(modules=[reader, pooling, Normalize()], device=device)
    source = RetrieverSpec(size.name, size.name, "dense", "builtin:random")
    return DenseRetriever(model, source, precision)
