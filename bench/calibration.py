"""Cost of calibrated attention: time to encode a batch with the plain and with calibrated models.

    python -m bench.calibration [--rounds 5]

One interleaved run on all-MiniLM-L6-v2 with documents of 512 tokens: plain; calibrated with default
settings (half of the layers); in all layers; and with first-token pooling, for which only one row
of attention changes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

from bench.saliency import pairs
from bench.timing import interleaved, ratio
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve

MODELS = ("MiniLM", "MiniLM@calibrated", "MiniLM@calibrated(layers=6)", "MiniLM@cls@calibrated")
TOKENS = 512


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    texts = [pair.document for pair in pairs(options.batch, TOKENS)]

    def encoding(name: str) -> Callable[[], None]:
        retriever = load(resolve(name), device="cpu")
        assert isinstance(retriever, DenseRetriever)
        encoded = retriever.encode_plain(texts, "document")

        def encode() -> None:
            with torch.no_grad():
                retriever.embed(encoded)

        return encode

    seconds = interleaved({name: encoding(name) for name in MODELS}, options.rounds)
    print(
        f"{TOKENS} tokens, batch {options.batch}, {torch.get_num_threads()} threads, "
        f"median of {options.rounds}"
    )
    for name, values in seconds.items():
        print(
            f"  {name:28} {1000 * statistics.median(values):8.1f} ms  "
            f"{ratio(values, seconds[MODELS[0]]):5.2f}x plain"
        )


if __name__ == "__main__":
    main()
