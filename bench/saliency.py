"""Cost of saliency relative to a forward pass of the same batch and to PosIR's published loop.

    python -m bench.saliency [--rounds 7]

One interleaved run on all-MiniLM-L6-v2, documents of 256 and of 512 tokens, queries of 12:

- `forward`: embed queries and documents, no gradients; saliency takes about twice this at least;
- `gradient`: saliency as defined in docs/methods.md, section 2, for the batch's documents;
- `saliency`: document and query tokens, as pages and runs compute it;
- `plain`: the gradients of the documents without Captum;
- `published loop`: one pair at a time with weights that require gradients, as in PosIR's scripts.
"""

from __future__ import annotations

import statistics
from functools import partial

from bench.contenders import LOOP, SALIENCY, contenders
from bench.encoders import dense, setting
from bench.options import run
from bench.timing import interleaved, ratio, time_line


def main(rounds: int = 7, batch: int = 8) -> None:
    """Print seconds and ratios."""
    retriever = dense("MiniLM")
    for tokens in (256, 512):
        runs = {n: partial(each, batch) for n, each in contenders(retriever, tokens).items()}
        seconds = interleaved(runs, rounds)
        print(setting(tokens, batch, rounds))
        for name, values in seconds.items():
            rate = batch / statistics.median(values)
            print(time_line(name, values, seconds["forward"], "forward"), f"{rate:7.2f} pairs/s")
        alone, both = (ratio(seconds[LOOP], seconds[name]) for name in ("gradient", SALIENCY))
        captum = 1 - ratio(seconds["plain"], seconds["gradient"])
        print(
            f"  pairs per second over the published loop: {alone:.2f}x (documents), {both:.2f}x "
            f"(both sides); Captum's share: {100 * captum:.1f}%"
        )


if __name__ == "__main__":
    run(main)
