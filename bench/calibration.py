"""Cost of calibrated attention: time to encode a batch with the plain and with calibrated models.

    python -m bench.calibration [--rounds 5]

One interleaved run on all-MiniLM-L6-v2 with documents of 512 tokens: plain; calibrated with default
settings (half of the layers); in all layers; and with first-token pooling, for which only one row
of attention changes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.contenders import pairs
from bench.encoders import dense, setting
from bench.options import run
from bench.timing import interleaved, time_line

MODELS = ("MiniLM", "MiniLM@calibrated", "MiniLM@calibrated(layers=6)", "MiniLM@cls@calibrated")
TOKENS = 512


def main(rounds: int = 5, batch: int = 8) -> None:
    """Print seconds and ratios."""
    texts = [pair.document for pair in pairs(batch, TOKENS)]

    def encoding(name: str) -> Callable[[], None]:
        retriever = dense(name)
        encoded = retriever.encode_plain(texts, "document")

        def encode() -> None:
            with torch.no_grad():
                retriever.embed(encoded)

        return encode

    seconds = interleaved({name: encoding(name) for name in MODELS}, rounds)
    print(setting(TOKENS, batch, rounds))
    for name, values in seconds.items():
        print(time_line(name, values, seconds[MODELS[0]], "plain"))


if __name__ == "__main__":
    run(main)
