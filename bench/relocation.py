"""How much of the retriever's own speed interventions keep.

    python -m bench.relocation [--pairs 200] [--rounds 5]

One interleaved run on all-MiniLM-L6-v2 and the sample data set: relocation of the evidence to 11
positions, and ablation of 20 parts by deletion, pair by pair as pages and runs compute them;
beside each, `SentenceTransformer.encode` on the very same documents and queries, all at once with
its own sorting and batches. A ratio of 1 is the library's throughput.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from attribution import datasets
from attribution.interventions.ablation import ablation, parts_of, without
from attribution.interventions.relocation import relocated, relocation
from attribution.retrievers.load import load
from attribution.retrievers.registry import resolve
from bench.timing import interleaved, ratio


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    retriever = load(resolve("MiniLM"), options.device)
    every = datasets.read("sample").pairs
    n = min(options.pairs, len(every))
    pairs = [every[int(i * len(every) / n)] for i in range(n)]
    moved = [[v.text for v in relocated(p).variants] for p in pairs]
    cut = []
    for pair in pairs:
        read = retriever.encode_texts([pair.document], "document").texts[0]
        until = read.read_until if read.truncated else len(pair.document)
        cut.append([without(pair.document, span) for span in parts_of(pair.document, until)])
    # The unchanged document is scored too, once for each pair.
    texts = {
        "relocation": [t for p, found in zip(pairs, moved, strict=True)
                       for t in (p.document, *found)],
        "ablation": [t for p, found in zip(pairs, cut, strict=True) for t in (p.document, *found)],
    }  # fmt: skip
    queries = [pair.query for pair in pairs]

    def library(name: str) -> None:
        retriever.model.encode(queries, show_progress_bar=False)
        retriever.model.encode(texts[name], show_progress_bar=False)

    seconds = interleaved(
        {
            "relocation": lambda: [relocation(retriever, pair) for pair in pairs],
            "relocation, library": lambda: library("relocation"),
            "ablation": lambda: [ablation(retriever, pair) for pair in pairs],
            "ablation, library": lambda: library("ablation"),
        },
        options.rounds,
    )
    print(f"{n} pairs, {torch.get_num_threads()} threads, {retriever.device}, median of "
          f"{options.rounds}")  # fmt: skip
    for name, documents in texts.items():
        own, theirs = seconds[name], seconds[f"{name}, library"]
        print(
            f"{name:11} {len(documents):6,} documents  {statistics.median(own):8.2f} s  "
            f"library {statistics.median(theirs):8.2f} s  "
            f"{100 * ratio(theirs, own):6.1f}% of its throughput"
        )


if __name__ == "__main__":
    main()
