"""Cost of a pair in forward passes of its document, if pairs share documents.

    python -m bench.shared_documents [--rounds 5] [--every 4] [--method saliency] [--tokens 256 512]

The bundled data set has 304 pairs on 68 documents. all-MiniLM-L6-v2 computes all pairs of every
fourth document (`--every`), cut to `--tokens`, in the batches of a run, interleaved:

- `forward`: embed the batch's documents once without gradients. The time per document, multiplied
  by the batch's pairs, is the unit of the others;
- `limit`: the forward and backward passes of saliency on both sides and nothing else, tokenized
  before;
- `method`: the method's `compute` of the same batches, both sides;
- `run`: the whole loop, which also tokenizes for batches, claims and stores each batch durably;
- `one by one`: each pair as a separate batch.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from bench.options import run
from bench.timing import interleaved, ratio
from poslens.attribution.datasets import read
from poslens.attribution.methods import METHODS, make_method, pair_batches
from poslens.attribution.methods.gradients import read_once
from poslens.attribution.methods.passes import encode_once, texts_of
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.attributions import OneDevice, precompute
from poslens.cache.keys import used_model
from poslens.cache.storage.store import ModelKey, Store


def passes(retriever: DenseRetriever, batch: list[TextPair]) -> Callable[[], object]:
    """The passes of saliency for a batch: one forward pass for each distinct text, and a backward
    pass for each pair."""
    sides = [encode_once(retriever, texts, side) for side, texts in texts_of(batch)]

    def forward_and_backward() -> None:
        for encoded, rounds in sides:
            read = read_once(retriever, encoded, rounds)
            vectors = read.vectors
            assert isinstance(vectors, torch.Tensor)
            for of_round in rounds.rounds:
                rows = [rounds.rows[pair] for pair in of_round]
                torch.autograd.grad(vectors[rows].sum(), read.leaves, retain_graph=True)

    return forward_and_backward


def measure(tokens: int, method: Method, every: int, n_rounds: int) -> None:
    """Print pairs per second and forward passes per pair for documents cut to these tokens."""
    spec = replace(resolve("MiniLM"), max_length=tokens)
    key = ModelKey("MiniLM", used_model(spec, "cpu", "float32").fingerprint)
    retriever = load(spec, device="cpu")
    assert isinstance(retriever, DenseRetriever)
    everything = read("sample").pairs
    chosen = set(list(dict.fromkeys(pair.document for pair in everything))[::every])
    pairs = [pair for pair in everything if pair.document in chosen]
    batches = list(pair_batches(pairs, "cpu", retriever.max_length))
    compute = METHODS[method.name].compute
    limits = [passes(retriever, batch) for batch in batches]

    def limit() -> None:
        for batch in limits:
            batch()

    def alone() -> None:
        for pair in pairs:
            compute(retriever, method, [pair])

    def together() -> None:
        for batch in batches:
            compute(retriever, method, batch)

    def whole_run() -> None:
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
        "limit": limit,
        "method": together,
        "run": whole_run,
        "one by one": alone,
    }
    seconds = interleaved(contenders, n_rounds)
    ratios = [len(batch) / len({pair.document for pair in batch}) for batch in batches]
    forwards = [
        sum(seconds[f"forward {n}"][turn] * times for n, times in enumerate(ratios))
        for turn in range(n_rounds)
    ]
    print(
        f"{method.name}, {tokens} tokens: {len(pairs)} pairs on {len(chosen)} documents "
        f"in {len(batches)} batches, {torch.get_num_threads()} threads, median of {n_rounds}"
    )
    print(f"  a forward pass a pair {1000 * statistics.median(forwards) / len(pairs):8.1f} ms")
    for name in ("limit", "method", "run", "one by one"):
        median = statistics.median(seconds[name])
        print(
            f"  {name:11} {len(pairs) / median:7.2f} pairs/s  "
            f"{ratio(seconds[name], forwards):5.2f} forwards a pair"
        )


def main(
    rounds: int = 5, every: int = 4, method: str = "saliency", tokens: tuple[int, ...] = (512,)
) -> None:
    """Measure one length after the other."""
    for n_tokens in tokens:
        measure(n_tokens, make_method(method), every, rounds)


if __name__ == "__main__":
    run(main)
