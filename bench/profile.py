"""Cost of a query-free profile: a forward pass with K backward passes, relative to the forward
pass.

    python -m bench.profile [--rounds 5]

One interleaved run on all-MiniLM-L6-v2 with documents of 512 tokens: a forward pass without
gradients, and profiles with K cotangents. The method doubles K until its standard error is small
enough.
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
TOKENS = 512
COTANGENTS = (1, 4, 8, 16)


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    retriever = load(resolve(MODEL), device="cpu")
    assert isinstance(retriever, DenseRetriever)
    texts = [pair.document for pair in pairs(options.batch, TOKENS)]
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
    seconds = interleaved(work, options.rounds)
    print(
        f"{TOKENS} tokens, batch {options.batch}, {torch.get_num_threads()} threads, "
        f"median of {options.rounds}"
    )
    for name, values in seconds.items():
        print(
            f"  {name:16} {1000 * statistics.median(values):8.1f} ms  "
            f"{ratio(values, seconds['forward']):5.2f}x forward"
        )


if __name__ == "__main__":
    main()
