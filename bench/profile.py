"""Cost of a query-free profile: a forward pass with K backward passes, relative to the forward
pass.

    python -m bench.profile [--rounds 5] [--batch 4] [--tokens 128 256 512]

One interleaved run for each length on all-MiniLM-L6-v2: a forward pass without gradients, and
profiles with K cotangents. The method doubles K until its standard error is small enough. The limit
counts multiplications: see `gradient_limit`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

from bench.saliency import pairs
from bench.timing import interleaved, ratio
from poslens.attribution.methods.profile import profile
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve

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


def main() -> None:
    """Print seconds, ratios and limits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 256, 512])
    options = parser.parse_args()
    retriever = load(resolve(MODEL), device="cpu")
    assert isinstance(retriever, DenseRetriever)
    for tokens in options.tokens:
        measure(retriever, tokens, options.batch, options.rounds)


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
    print(f"{tokens} tokens, batch {batch}, {torch.get_num_threads()} threads, median of {rounds}")
    limits = dict(zip(work, (1, *(1 + k * backward for k in COTANGENTS)), strict=True))
    for name, values in seconds.items():
        print(
            f"  {name:16} {1000 * statistics.median(values):8.1f} ms  "
            f"{ratio(values, seconds['forward']):5.2f}x forward, limit {limits[name]:5.2f}x"
        )


if __name__ == "__main__":
    main()
