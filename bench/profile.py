"""Cost of a query-free profile: a forward pass with K backward passes, relative to the forward
pass.

    python -m bench.profile [--rounds 5] [--batch 4] [--tokens 128 256 512]

One interleaved run for each length on all-MiniLM-L6-v2: a forward pass without gradients, and
profiles with K cotangents. The method doubles K until its standard error is small enough. The limit
counts multiplications: see `gradient_limit`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.contenders import pairs
from bench.encoders import dense, setting
from bench.options import run
from bench.timing import interleaved, time_line
from poslens.attribution.methods.profile import profile
from poslens.attribution.retrievers.dense import DenseRetriever

MODEL = "MiniLM"
COTANGENTS = (1, 4, 8, 16)


def gradient_limit(hidden: int, intermediate: int, tokens: int) -> float:
    """Multiplications of a backward pass to the input embeddings, relative to a forward pass.

    A linear layer without a gradient of its weights takes as many as in the forward pass; the two
    products of attention take twice as many. What a fused kernel computes a second time, softmax,
    normalization and activations are not counted, so measured ratios are higher.
    """
    linear = 4 * hidden**2 + 2 * hidden * intermediate
    attention = 2 * tokens * hidden
    return (linear + 2 * attention) / (linear + attention)


def main(rounds: int = 5, batch: int = 4, tokens: tuple[int, ...] = (128, 256, 512)) -> None:
    """Print seconds, ratios and limits."""
    retriever = dense(MODEL)
    for n_tokens in tokens:
        measure(retriever, n_tokens, batch, rounds)


def measure(retriever: DenseRetriever, tokens: int, batch: int, rounds: int) -> None:
    """Print the table of one length."""
    model = retriever.model.transformers_model
    assert model is not None
    config = model.config
    backward = gradient_limit(config.hidden_size, config.intermediate_size, tokens)
    texts = [pair.document for pair in pairs(batch, tokens)]
    encoded = retriever.encode_texts(texts, "document")
    width = retriever.model.get_embedding_dimension() or 0
    generator = torch.Generator().manual_seed(0)

    def forward() -> None:
        with torch.no_grad():
            retriever.embed(encoded)

    def profiling(k: int) -> Callable[[], None]:
        cotangents = torch.randn(k, width, generator=generator)
        return lambda: profile(retriever, encoded, cotangents) and None

    work = {"forward": forward, **{f"profile, K = {k}": profiling(k) for k in COTANGENTS}}
    seconds = interleaved(work, rounds)
    print(setting(tokens, batch, rounds))
    limits = dict(zip(work, (1, *(1 + k * backward for k in COTANGENTS)), strict=True))
    for name, values in seconds.items():
        line = time_line(name, values, seconds["forward"], "forward")
        print(f"{line}, limit {limits[name]:5.2f}x")


if __name__ == "__main__":
    run(main)
