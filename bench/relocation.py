"""Throughput of interventions relative to that of sentence-transformers.

    python -m bench.relocation [--pairs 200] [--groups 10]

One interleaved run on all-MiniLM-L6-v2 and the sample data set: relocation of the evidence to 11
positions, and ablation of 20 parts by deletion, pair by pair as in runs, which encode shared texts
once. Each is compared with `SentenceTransformer.encode` on the same documents and queries, all of a
group at once with the library's own sorting and batches. Every round uses the next group of pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from bench.encoders import dense
from bench.options import run
from bench.timing import interleaved, ratio
from poslens.attribution import datasets
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.interventions.ablation import ablation, parts_of, without
from poslens.attribution.interventions.relocation import relocated, relocation
from poslens.attribution.retrievers.base import Representation
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.scoring import size
from poslens.attribution.types import TextPair
from poslens.cache.kinds.embeddings import RECENT_BYTES
from poslens.cache.lru_cache import LRUCache

Run = Callable[[], object]


def contenders(
    retriever: DenseRetriever, pairs: Sequence[TextPair]
) -> tuple[dict[str, Run], dict[str, int]]:
    """The functions to time on a group of pairs, and the number of documents that each intervention
    encodes."""
    # Each pair's unchanged document is scored too.
    moved = [t for p in pairs for t in (p.document, *(v.text for v in relocated(p)[0]))]
    cut = []
    for pair in pairs:
        read = retriever.encode_texts([pair.document], "document").texts[0]
        until = read.read_until if read.truncated else len(pair.document)
        parts = parts_of(pair.document, until)
        cut += [pair.document, *(without(pair.document, span) for span in parts)]
    queries = [pair.query for pair in pairs]

    def library(texts: list[str]) -> None:
        retriever.model.encode(queries, show_progress_bar=False)
        retriever.model.encode(texts, show_progress_bar=False)

    def shared(intervention: Callable[..., object]) -> None:
        cache = LRUCache[Representation](RECENT_BYTES, weigh=size)
        for pair in pairs:
            intervention(retriever, pair, cached=cache)

    return {
        "relocation": lambda: shared(relocation),
        "relocation, library": lambda: library(moved),
        "ablation": lambda: shared(ablation),
        "ablation, library": lambda: library(cut),
    }, {"relocation": len(moved), "ablation": len(cut)}


def main(pairs: int = 200, groups: int = 10, device: str = "auto") -> None:
    """Print seconds and ratios."""
    retriever = dense("MiniLM", device)
    moved = list(spread_evenly(datasets.read("sample").pairs, pairs))
    interleaved(contenders(retriever, moved[:1])[0], 1)  # warm-up
    seconds: dict[str, list[float]] = {}
    documents: Counter[str] = Counter()
    for group in range(groups):
        timed, counts = contenders(retriever, moved[group::groups])
        documents.update(counts)
        for name, took in interleaved(timed, 1, warm_up=False).items():
            seconds.setdefault(name, []).extend(took)
    print(
        f"{len(moved)} pairs in {groups} groups, {torch.get_num_threads()} threads, "
        f"{retriever.device}"
    )
    for name, count in documents.items():
        measured, library = seconds[name], seconds[f"{name}, library"]
        print(
            f"{name:11} {count:6,} documents  {sum(measured):8.2f} s  library "
            f"{sum(library):8.2f} s  {100 * ratio(library, measured):6.1f}% of its throughput "
            "(median of groups)"
        )


if __name__ == "__main__":
    run(main)
