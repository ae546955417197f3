"""Time of an audit of a corpus by stage, and an estimate for 100,000 sentences.

    python -m bench.audit [--sentences 5000] [--model MiniLM] [--threads 2]
    python -m bench.audit --sentences 36000 --per-document 36 --width 5

Documents have 20 sentences of 8 to 20 words drawn from the bundled sample; 36 sentences are 500
words. With --width the audit stops once its interval is that many percentage points wide, and there
is no estimate. The time to read documents and embed sentences is proportional to their number. The
time to compare is proportional to sentences times documents, so it is measured separately with an
index as large as that of 100,000 sentences. `cpu` is the processor time of all threads, which load
from other programs affects less than wall time.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch

from bench.options import run
from bench.timing import timed
from poslens.attribution import datasets
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.evaluation.audit import TOP
from poslens.attribution.evaluation.audit_precision import Precision
from poslens.attribution.evaluation.chunks import WHOLE
from poslens.attribution.evaluation.document_index import Ranks, VectorIndex
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.storage.store import ModelKey
from poslens.studies.audit.run import run_audit

WANTED = 100_000
PER_DOCUMENT = 20
COMPARED = 50
"""Number of documents whose sentences are compared with the large index."""


def corpus(n_sentences: int, per_document: int = PER_DOCUMENT) -> Collection:
    """A corpus of about `n_sentences` sentences made of the sample's English words, with
    `per_document` in each document."""
    chance = random.Random(7)
    pairs = [pair for pair in datasets.read("sample").pairs if pair.language == "eng"]
    words = [word.strip(".,;:()\"'").lower() for pair in pairs for word in pair.document.split()]

    def sentence() -> str:
        return " ".join(chance.choices(words, k=chance.randint(8, 20))).capitalize() + "."

    documents = [
        Document(f"d{d}", " ".join(sentence() for _ in range(per_document)), language="eng")
        for d in range(max(2, n_sentences // per_document))
    ]
    return Collection("bench", "bench", (), lambda: iter(documents))


def compare(width: int) -> float:
    """Seconds to compare a document's sentences and questions with two indexes of that size, whose
    vectors [n, width] are random."""
    n = WANTED // PER_DOCUMENT
    index = VectorIndex(torch.randn(n, width), Ranks(range(n), range(n)), lambda q, d: q @ d.T)
    queries = torch.randn(2 * PER_DOCUMENT, width)

    def ranks() -> None:
        for number in range(COMPARED):
            for _ in range(2):
                index.ranks(queries, [number] * len(queries))

    return timed(ranks).wall / COMPARED


def main(
    sentences: int = 5_000,
    model: str = "MiniLM",
    threads: int = 2,
    per_document: int = PER_DOCUMENT,
    width: Annotated[int, {"help": "Percentage points."}] = 0,
) -> None:
    """Print the time of each stage, and the estimate for 100,000 sentences."""
    torch.set_num_threads(threads)
    collection = corpus(sentences, per_document)
    precision = Precision("sentence", TOP, width / 100)
    retriever = load(resolve(model))
    stages: list[tuple[str, float, float]] = []

    def mark(stage: str) -> None:
        if ": " in stage:  # an intermediate share of unretrieved sentences, not a new stage
            print(f"{time.perf_counter() - stages[0][1]:.0f} s, {stage}", flush=True)
        else:
            stages.append((stage, time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as root:
        store = AuditStore(Path(root), collection)
        key = ModelKey("bench", "0" * 16)
        marked = RunOptions(on_stage=mark)
        done = run_audit(store, retriever, key, WHOLE, precision=precision, options=marked)
        mark("end")
        size = sum(path.stat().st_size for path in Path(root).rglob("*") if path.is_file())
    n = sentences
    wall = cpu = 0.0
    for (stage, a, b), (_, c, d) in pairwise(stages):
        print(f"{stage}: {c - a:.1f} s, cpu {d - b:.1f} s")
        if stage != "Measuring where it truncates":  # does not depend on the corpus
            wall, cpu = wall + c - a, cpu + d - b
    if width:
        print(f"{done.done:,} of {done.total:,} documents: {wall:.0f} s, cpu {cpu:.0f} s")
        return
    more = compare(384) * WANTED / PER_DOCUMENT
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{n:,} sentences of {done.total:,} documents: {n / wall:.0f} sentences/s")
    print(f"comparing {WANTED:,} sentences with their documents: {more:.0f} s")
    print(
        f"{WANTED:,} sentences: {(wall * WANTED / n + more) / 60:.0f} min, of cpu "
        f"{(cpu * WANTED / n + more) / 60:.0f} min"
    )
    print(
        f"this run: {size / 2**20:.0f} MiB stored, {peak:.0f} MiB of memory, including libraries "
        "and model"
    )


if __name__ == "__main__":
    run(main)
