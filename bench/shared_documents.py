"""Cost of a pair in forward passes of its document, if pairs share documents.

    python -m bench.shared_documents [--rounds 5] [--every 4] [--method saliency]

The bundled data set has 304 pairs on 68 documents. all-MiniLM-L6-v2 computes all pairs of every
fourth document (`--every`) in the batches of a run, interleaved:

- `forward`: embed the batch's documents once without gradients. The time per document, multiplied
  by the batch's pairs, is the unit of the others;
- `method`: the method's `compute` of the same batches, both sides;
- `run`: the whole loop, which also tokenizes for batches, claims and stores each batch durably;
- `one by one`: each pair as a separate batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from bench.timing import interleaved, ratio
from poslens.attribution.datasets import read
from poslens.attribution.methods import METHODS, make_method, pair_batches
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import TextPair
from poslens.cache.jobs.attributions import OneDevice, precompute
from poslens.cache.keys import used_model
from poslens.cache.storage.store import ModelKey, Store


def main() -> None:
    """Print pairs per second and forward passes per pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--method", default="saliency")
    options = parser.parse_args()
    spec, method = resolve("MiniLM"), make_method(options.method)
    key = ModelKey("MiniLM", used_model(spec, "cpu", "float32").fingerprint)
    retriever = load(spec, device="cpu")
    assert isinstance(retriever, DenseRetriever)
    everything = read("sample").pairs
    chosen = set(list(dict.fromkeys(pair.document for pair in everything))[:: options.every])
    pairs = [pair for pair in everything if pair.document in chosen]
    batches = list(pair_batches(pairs, "cpu", retriever.max_length))
    compute = METHODS[method.name].compute

    def alone() -> None:
        for pair in pairs:
            compute(retriever, method, [pair])

    def together() -> None:
        for batch in batches:
            compute(retriever, method, batch)

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            device = OneDevice(retriever, method)
            done = precompute(device, key, method, pairs, Store(Path(folder)))
            assert done.computed == len(pairs)

    def forward(batch: list[TextPair]) -> None:
        documents = list(dict.fromkeys(pair.document for pair in batch))
        encoded = retriever.encode_texts(documents, "document")
        with torch.no_grad():
            retriever.embed(encoded)

    contenders: dict[str, Callable[[], object]] = {
        **{f"forward {n}": partial(forward, batch) for n, batch in enumerate(batches)},
        "method": together,
        "run": run,
        "one by one": alone,
    }
    seconds = interleaved(contenders, options.rounds)
    ratios = [len(batch) / len({pair.document for pair in batch}) for batch in batches]
    forwards = [
        sum(seconds[f"forward {n}"][turn] * times for n, times in enumerate(ratios))
        for turn in range(options.rounds)
    ]
    print(
        f"{method.name}: {len(pairs)} pairs on {len(chosen)} documents in {len(batches)} batches, "
        f"{torch.get_num_threads()} threads, median of {options.rounds}"
    )
    print(f"  a forward pass a pair {1000 * statistics.median(forwards) / len(pairs):8.1f} ms")
    for name in ("method", "run", "one by one"):
        median = statistics.median(seconds[name])
        print(
            f"  {name:11} {len(pairs) / median:7.2f} pairs/s  "
            f"{ratio(seconds[name], forwards):5.2f} forwards a pair"
        )


if __name__ == "__main__":
    main()
