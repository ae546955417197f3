"""Writers and readers at once on one file of the store, as processes.

    python -m tests.load.store --writers 8 --readers 8 --operations 200000

A writer puts new results and, one time in four, replaces one of its own; a reader gets single
results and all curves. All numbers are derived from pair and text, so that torn, stale or doubled
results are detected.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poslens.attribution.curves.positions import curve_params, document_curve
from poslens.attribution.types import Attribution, Method, TextPair, Token, TokenizedText
from poslens.cache.storage import index
from poslens.cache.storage.store import ModelKey, Store
from tests.support.stored import everything

METHOD = Method("saliency", {"version": 1}, curve_params())
MODEL = ModelKey("M", "0123456789abcdef")
SIZE = 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """Number of operations, and `lost`, `torn` and `doubled`, which must be zero."""

    operations: int
    seconds: float
    lost: int
    torn: int
    doubled: int


def result(name: str, edition: int) -> tuple[TextPair, Attribution]:
    """A pair in one of its editions, with numbers derived from both."""
    text = TokenizedText.of(tuple(Token(f"t{j}", j, j + 1) for j in range(SIZE)), SIZE, 512)
    seed = int.from_bytes(f"{name} {edition}".encode(), "big") % 2**63
    scores = np.random.default_rng(seed).random(SIZE, dtype=np.float32)
    pair = TextPair(name, "query", f"edition {edition}".ljust(SIZE), dataset="set")
    return pair, Attribution("M", METHOD, name, float(edition), text, text, scores, scores)


def _write(root: Path, who: int, operations: int) -> dict[str, int]:
    store, generator, editions = Store(root), random.Random(who), {}
    for n in range(operations):
        again = editions and generator.random() < 0.25
        name = generator.choice(list(editions)) if again else f"{who}-{n}"
        editions[name] = editions.get(name, 0) + 1
        store.put(MODEL, METHOD, [result(name, editions[name])])
    return editions


def _read(root: Path, who: int, writers: int, operations: int) -> tuple[int, int]:
    store, generator = Store(root), random.Random(-who)
    torn = doubled = 0
    for n in range(operations):
        if n % 16 == 0:
            found = everything(store, MODEL, METHOD)
            doubled += sum(count > 1 for count in Counter(found.pair_ids).values())
            for place in generator.sample(range(len(found.curves)), min(2, len(found.curves))):
                _, right = result(found.pair_ids[place], int(found.scores[place]))
                torn += document_curve(right, METHOD).tobytes() != found.curves[place].tobytes()
        else:
            name = f"{generator.randrange(writers)}-{generator.randrange(operations)}"
            pair, right = result(name, generator.choice((1, 1, 1, 2)))
            got = store.get(MODEL, METHOD, pair)
            torn += got is not None and (
                got.document_scores.tobytes() != right.document_scores.tobytes()
                or got.score != right.score
            )
    return torn, doubled


def load(root: Path, writers: int, readers: int, operations: int) -> Outcome:
    """Run writers and readers, `operations` in total, and count what went wrong."""
    each = operations // (writers + readers)
    started = time.perf_counter()
    # Separate processes instead of forks, since connections must not be inherited.
    with multiprocessing.get_context("spawn").Pool(writers + readers) as pool:
        writing = [pool.apply_async(_write, (root, who, each)) for who in range(writers)]
        reading = [pool.apply_async(_read, (root, k, writers, each)) for k in range(readers)]
        editions = {name: n for part in writing for name, n in part.get().items()}
        seen = [part.get() for part in reading]
    seconds = time.perf_counter() - started
    index.forget_below(Path("/"))
    found = everything(Store(root), MODEL, METHOD)
    stored = dict(zip(found.pair_ids, found.scores.tolist(), strict=True))
    curves = dict(zip(found.pair_ids, found.curves, strict=True))
    lost = sum(stored.get(name) != n for name, n in editions.items())
    torn = sum(part[0] for part in seen)
    for name, n in editions.items():
        _, right = result(name, n)
        torn += curves[name].tobytes() != document_curve(right, METHOD).tobytes()
    doubled = sum(part[1] for part in seen) + len(found.pair_ids) - len(stored)
    return Outcome(each * (writers + readers), seconds, lost, torn, doubled)


def main() -> None:
    """Run and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--operations", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = load(Path(folder), options.writers, options.readers, options.operations)
    print(outcome)
    if outcome.lost or outcome.torn or outcome.doubled:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
