"""The mean curve of a large data set in a new process, as after a restart of the dashboard.

    python -m bench.curves --pairs 42000 [--rounds 5] [--home FOLDER] [--against CHECKOUT]

Stores a synthetic result of MiniLM for each pair (0.2 ms each; 421,000 need 3 GB), in --home if
given, so that later runs reuse them. Then starts a new process for each round, alternating with an
earlier checkout if --against names one. Each process opens the data set, lists and filters pairs
and computes what the pages Explain and Curves show. Prints the median wall-clock and CPU time of
each step, and the process's peak memory before it opened the data set and at the end. The first
process of a checkout writes the index of the data set and the mean curve, so run it twice.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from bench.options import run
from bench.processes import checkouts, output_of
from bench.store import METHOD, result
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import Attribution, TextPair
from poslens.compute.compute import Compute

BATCH = 4096
TEMPLATES = 256
DIGITS = 7
PAIRS_PER_DOCUMENT = 4.5
"""The ratio in PosIR."""

PROCESS = """
import json, resource, sys, time
from pathlib import Path
from poslens.attribution import datasets
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import Compute
from poslens.compute.selection import Filters, facets

def timed(name, run):
    clock, used = time.perf_counter(), time.process_time()
    answer = run()
    rows[name] = time.perf_counter() - clock, time.process_time() - used
    return answer

rows, home, data = {}, Path(sys.argv[1]), sys.argv[2]
spec, method = resolve("MiniLM"), make_method("saliency")
compute = Compute(home)
compute.identify(spec)
compute.store.missing(compute.identify(spec).key, method, [])
(name,) = datasets.register("bench", data)
imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
opened = timed("data set opened", lambda: datasets.read(name))
half = len(opened.pairs) // 2
asked = Filters((("language", "eng"),), (0, 100), "")
timed("filtered", lambda: facets(opened).select(asked))
timed("1,000 pairs listed", lambda: opened.pairs[half : half + 1000])
timed("pair by id", lambda: opened.pair(f"p{half}"))
def mean():
    return compute.means.recent(compute.identify(spec).key, method, opened.pairs, name)
timed("mean on Explain", mean)
timed("mean on Explain, again", mean)
timed("mean on Curves", lambda: compute.curve(spec, method, opened.pairs, name).summary.curve.mean)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"rows": rows, "imports": imports, "memory": memory}))
"""


def made_up(n: int) -> Iterator[tuple[TextPair, Attribution]]:
    """n pairs, each with a result. Texts are distinct, except that pairs share documents; scores
    repeat."""
    templates = [_numbered(*result(k, 250)) for k in range(TEMPLATES)]
    for k in range(n):
        document = int(k / PAIRS_PER_DOCUMENT)
        pair, stored = templates[document % TEMPLATES]
        words, tokens = f"{document:0{DIGITS}d}", stored.document.texts[1:]
        yield (
            replace(
                pair, pair_id=f"p{k}", query=f"{pair.query} {k}", document=words + pair.document
            ),
            replace(
                stored, pair_id=f"p{k}", document=replace(stored.document, texts=(words, *tokens))
            ),
        )


def _numbered(pair: TextPair, stored: Attribution) -> tuple[TextPair, Attribution]:
    """A template: the document without its first word, with offsets that leave room for a number of
    DIGITS digits in its place."""
    first = stored.document.texts[0]
    shift = DIGITS - len(first)
    starts = np.maximum(stored.document.starts + shift, 0)
    moved = replace(stored.document, starts=starts, ends=stored.document.ends + shift)
    return replace(pair, document=pair.document[len(first) :]), replace(stored, document=moved)


def fill(home: Path, n: int) -> Path:
    """Store results of MiniLM for n pairs in a data folder, if it has none; returns the file of the
    pairs."""
    data = home / f"{n}.jsonl"
    if data.exists():
        return data
    home.mkdir(parents=True, exist_ok=True)
    compute = Compute(home)
    model = compute.identify(resolve("MiniLM")).key
    unfinished = data.with_suffix(".part")
    results = made_up(n)
    with unfinished.open("w") as rows:
        while batch := list(islice(results, BATCH)):
            named = [(replace(pair, dataset="bench"), stored) for pair, stored in batch]
            compute.store.put(model, METHOD, named)
            for pair, _ in named:
                row = {"pair_id": pair.pair_id, "query": pair.query, "document": pair.document}
                rows.write(json.dumps(row | {"language": pair.language}) + "\n")
    compute.store.release()
    return unfinished.rename(data)


def measured(home: Path, data: Path, checkout: Path) -> dict[str, tuple[float, float]]:
    """Wall-clock and CPU seconds of each step of a new process, and its peak memory before the data
    set was opened and at the end."""
    printed = output_of("-c", PROCESS, str(home), str(data), checkout=checkout, home=home)
    answer = json.loads(printed.splitlines()[-1])
    memory = answer["imports"] / 1024, answer["memory"] / 1024
    return {**answer["rows"], "memory before/after, MiB": memory}


def main(
    pairs: int = 42_000, rounds: int = 5, home: Path | None = None, against: Path | None = None
) -> None:
    """Print the median of each step over the rounds."""
    taken: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (home or Path(temporary)).absolute()
        data = fill(folder, pairs)
        for _ in range(rounds):
            for name, checkout in checkouts(against).items():
                for step, took in measured(folder, data, checkout).items():
                    taken[step, name].append(took)
    for (step, name), times in taken.items():
        clock, processor = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{step:26}{name:6} clock {clock:9.3f}  processor {processor:9.3f}  n={len(times)}")


if __name__ == "__main__":
    run(main)
