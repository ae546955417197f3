"""Dense retrievers of benchmarks: presets, and models of a given size with random weights, which
need no download. The time of a pass does not depend on the values of the weights.

Random weights are created on the device in their precision. The tokenizer is MiniLM's, so that
texts are processed as for a real model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load, use_kernels_for_all_lengths
from poslens.attribution.retrievers.resolve import locate, resolve
from poslens.attribution.retrievers.specs import RetrieverSpec


def dense(name: str, device: str = "cpu", precision: str = "auto") -> DenseRetriever:
    """The dense model of this name."""
    retriever = load(resolve(name), device, precision)
    assert isinstance(retriever, DenseRetriever)
    return retriever


@contextmanager
def attention(retriever: Any, implementation: str) -> Iterator[None]:
    """Use another of transformers' implementations of attention."""
    backbone = retriever.backbone
    before = backbone.config._attn_implementation
    backbone.set_attn_implementation(implementation)
    try:
        yield
    finally:
        backbone.set_attn_implementation(before)


def setting(tokens: int, batch: int, rounds: int) -> str:
    """The heading of a table of times."""
    threads = torch.get_num_threads()
    return f"{tokens} tokens, batch {batch}, {threads} threads, median of {rounds}"


POSITIONS = 8194
"""Number of positions of every model: 8,192 tokens, and two that RoBERTa-like models reserve."""


@dataclass(frozen=True, slots=True)
class Size:
    """An architecture: its type in transformers, its pooling and its configuration."""

    name: str
    model_type: str
    pooling: str
    settings: Mapping[str, Any]

    def work(self, document: int, query: int) -> float:
        """Floating-point operations of saliency of one pair with this many tokens: for each side a
        forward pass, and a backward pass to the inputs.

        A pass takes 2 operations per weight and token. Attention takes 4 T H operations per token
        and layer, and twice that in the backward pass; causal attention takes half.
        """
        return self.gradient(document) + self.gradient(query)

    def gradient(self, tokens: int) -> float:
        """Floating-point operations for one text of this many tokens."""
        config = self.config()
        width = config.num_attention_heads * (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        attention = 4.0 * config.num_hidden_layers * tokens**2 * width
        if self.pooling == "lasttoken":
            attention /= 2
        return float(4 * self.weights() * tokens + 3 * attention)

    def weights(self) -> int:
        """Number of weights of matrix products, which excludes embedding tables and norms."""
        with torch.device("meta"):
            model = AutoModel.from_config(self.config())
        return sum(
            module.weight.numel()
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and "pooler" not in name
        )

    def config(self, **changed: Any) -> Any:
        """The configuration for transformers; `changed` replaces settings."""
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
    # The configurations of Qwen3-Embedding-0.6B and -8B.
    Size("0.6B", "qwen3", "lasttoken", _qwen3(1024, 28, 16, 3072)),
    Size("8B", "qwen3", "lasttoken", _qwen3(4096, 36, 32, 12288)),
)


def build(size: Size, device: str, precision: str) -> DenseRetriever:
    """A frozen retriever of this size on `device`, in `precision` (the name of a torch dtype)."""
    torch.manual_seed(7)
    use_kernels_for_all_lengths(torch.device(device))
    with torch.device(device):
        backbone: Any = AutoModel.from_config(size.config(), dtype=getattr(torch, precision))
    # sentence-transformers builds its module from a folder, so it loads a small model of the same
    # architecture, which is then replaced.
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
