"""Cost of the position effect on rank, relative to the relocation that `cause` computes.

    python -m bench.positions [--model MiniLM] [--pairs 30] [--rounds 1]

Processor time of one thread, on the sample. Each round uses two new stores. The first is for
relocation of the pairs (the cost of `cause`), then the vectors of the corpus (which `rank` and
`audit` share), then the ranks of the moved documents; the second is for `positions` with nothing
stored.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch

from bench.options import run
from bench.timing import timed
from poslens.arguments import data_set
from poslens.attribution.interventions.relocation import N_POSITIONS, relocation_method
from poslens.attribution.retrievers.base import Pooled, Retriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.kinds.embeddings import EmbeddingStore, embed
from poslens.cache.kinds.interventions import RankedPair, intervene_all
from poslens.cache.storage.connections import release
from poslens.cache.storage.store import ModelKey
from poslens.studies.positions.run import run_positions
from poslens.studies.positions.study import POSITIONS
from poslens.studies.positions.summary import Moved


def main(model: str = "MiniLM", pairs: int = 30, rounds: int = 1) -> None:
    """Time each part once per round and print a Markdown table."""
    torch.set_num_threads(1)
    retriever = load(resolve(model), "cpu", "float32")
    settings = POSITIONS.parameters.settings({"pairs": pairs})
    moved = POSITIONS.corpus(data_set("sample"), settings)
    taken = [_round(retriever, moved) for _ in range(rounds)]
    print("| | processor time | relative to cause |\n|---|---|---|")
    for name, seconds in {
        "cause": [cause for cause, *_ in taken],
        "positions, after cause and rank": [ranks for _, _, ranks, _ in taken],
        "positions, after rank": [cause + ranks for cause, _, ranks, _ in taken],
        "positions, nothing stored": [alone for *_, alone in taken],
    }.items():
        ratios = [value / parts[0] for value, parts in zip(seconds, taken, strict=True)]
        print(f"| {name} | {statistics.median(seconds):.1f} s | {statistics.median(ratios):.2f} |")


def _round(retriever: Retriever, moved: Moved) -> tuple[float, float, float, float]:
    """Seconds of relocation, of the corpus's vectors and of the ranks, computed in this order, and
    of `positions` with nothing stored."""
    model = ModelKey(retriever.name, "bench")
    pairs, collection = moved.pairs, moved.collection
    items = [RankedPair(pair, moved.fingerprint) for pair in pairs]
    texts = [document.text for document in collection.documents()]
    dense = cast(Pooled, retriever)

    def positions(root: Path) -> None:
        run_positions(root, retriever, model, N_POSITIONS, items, collection)

    with _new_store() as root:
        method, store = relocation_method(), EmbeddingStore(root)
        parts = (
            timed(lambda: intervene_all(retriever, model, method, pairs, root)).cpu,
            timed(lambda: embed(dense, model, "document", texts, store)).cpu,
            timed(lambda: positions(root)).cpu,
        )
    with _new_store() as root:
        return *parts, timed(lambda: positions(root)).cpu


@contextmanager
def _new_store() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)
        release(Path(folder))


if __name__ == "__main__":
    run(main)
