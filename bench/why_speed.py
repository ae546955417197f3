"""Time of one explanation by `poslens why`, with the vectors of the corpus stored.

    python -m bench.why_speed [--documents 10000] [--queries 20] [--model MiniLM]

The corpus consists of the sample's documents and of pairs of their sentences. The model is loaded
and the vectors are computed and stored first, in POSLENS_HOME; opening the corpus is timed
separately. Then each query is explained as by the Why page and the command: search, changes, rank
after each. `cpu` is the processor time of all threads, which other load affects less than wall
time; with OMP_NUM_THREADS=1 it is an upper limit of the wall time on an idle machine.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

import numpy as np

from poslens.attribution import datasets
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.evaluation.why import Wanted, why
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.text import sentences
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds of opening the corpus and of each explanation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--model", default="MiniLM")
    options = parser.parse_args(arguments)
    documents = corpus(options.documents)
    number = {document.text: i for i, document in enumerate(documents)}
    collection = Collection("speed", "speed", (), lambda: iter(documents))
    compute = Compute()
    model = compute.identify(resolve(options.model))
    retriever = compute.retriever(model)
    started, began = time.perf_counter(), time.process_time()
    searched = opened(compute, model.key, retriever, collection)
    wall, used = time.perf_counter() - started, time.process_time() - began
    print(f"corpus opened: {wall:.1f} s, cpu {used:.1f} s (with encoding, unless stored)")
    searcher = Searcher(searched, retriever, RunOptions())
    pairs = [pair for pair in datasets.read("sample").pairs if pair.document in number]
    taken, cpu, misses = list[float](), list[float](), 0
    # A top of 1 makes most documents a miss: in the top k, nothing is changed.
    for pair in pairs[:: max(1, len(pairs) // options.queries)]:
        started, began = time.perf_counter(), time.process_time()
        scores = searcher.search(pair.query)
        at = number[pair.document]
        wanted = Wanted(pair.query, f"d{at}", at, pair.document, pair.evidence)
        result = why(wanted, scores, 1, frozenset())
        if result.cause != "found":
            misses += 1
            taken.append(time.perf_counter() - started)
            cpu.append(time.process_time() - began)
    if not taken:
        raise SystemExit("Every document is found: nothing was explained.")
    for name, seconds in (("wall", taken), ("cpu", cpu)):
        median, most, worst = np.percentile(seconds, [50, 90, 100])
        times = f"{median:.2f} s (median), {most:.2f} s (90%), {worst:.2f} s (slowest)"
        print(f"{misses} misses, {name}: {times}")


if __name__ == "__main__":
    main()
