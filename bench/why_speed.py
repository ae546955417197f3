"""Time of one explanation by `poslens why`, with the vectors of the corpus stored.

    python -m bench.why_speed [--documents 10000] [--queries 20] [--model MiniLM]

The corpus consists of the sample's documents and of pairs of their sentences. The model is loaded
and the vectors are computed and stored first, in POSLENS_HOME; opening the corpus is timed
separately. Then each query is explained as by the Why page and the command: search, changes, rank
after each. `cpu` is the processor time of all threads, which other load affects less than wall
time; with OMP_NUM_THREADS=1 it is an upper limit of the wall time on an idle machine.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np

from bench.options import run
from bench.timing import timed
from poslens.attribution import datasets
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.evaluation.why import Wanted, why
from poslens.attribution.evaluation.why_causes import Why
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.text import sentences
from poslens.attribution.types import TextPair
from poslens.cache.jobs.loop import RunOptions
from poslens.compute.compute import Compute
from poslens.studies.why.search import Searcher, opened


def corpus(n: int) -> list[Document]:
    """`n` documents: those of the sample, and pairs of their sentences."""
    texts = list(dict.fromkeys(pair.document for pair in datasets.read("sample").pairs))
    parts = [text[a:b] for text in texts for a, b in sentences(text)]
    draw = random.Random(0)
    pairs = {f"{draw.choice(parts)} {draw.choice(parts)}" for _ in range(2 * n)}
    return [Document(f"d{i}", text) for i, text in enumerate([*texts, *sorted(pairs)][:n])]


def main(documents: int = 10_000, queries: int = 20, model: str = "MiniLM") -> None:
    """Print the seconds of opening the corpus and of each explanation."""
    listed = corpus(documents)
    number = {document.text: i for i, document in enumerate(listed)}
    collection = Collection("speed", "speed", (), lambda: iter(listed))
    compute = Compute()
    used = compute.identify(resolve(model))
    retriever = compute.retriever(used)
    searched, wall, cpu = timed(lambda: opened(compute, used.key, retriever, collection))
    print(f"corpus opened: {wall:.1f} s, cpu {cpu:.1f} s (with encoding, unless stored)")
    searcher = Searcher(searched, retriever, RunOptions())

    def explain(pair: TextPair) -> Why:
        scores = searcher.search(pair.query)
        at = number[pair.document]
        wanted = Wanted(pair.query, f"d{at}", at, pair.document, pair.evidence)
        # A top of 1 makes most documents a miss: in the top k, nothing is changed.
        return why(wanted, scores, 1, frozenset())

    pairs = [pair for pair in datasets.read("sample").pairs if pair.document in number]
    chosen = pairs[:: max(1, len(pairs) // queries)]
    explained = [timed(partial(explain, pair)) for pair in chosen]
    misses = [each for each in explained if each.result.cause != "found"]
    if not misses:
        raise SystemExit("Every document is found: nothing was explained.")
    for name in ("wall", "cpu"):
        seconds = [getattr(each, name) for each in misses]
        median, most, worst = np.percentile(seconds, [50, 90, 100])
        times = f"{median:.2f} s (median), {most:.2f} s (90%), {worst:.2f} s (slowest)"
        print(f"{len(misses)} misses, {name}: {times}")


if __name__ == "__main__":
    run(main)
