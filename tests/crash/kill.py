"""SIGKILL at random moments of a real precompute, again and again.

    python -m tests.crash.kill --kills 1000

Each run is a forked child that computes missing results, reports acknowledged pairs through a pipe
after each batch, and is killed after a random time. The retriever is BM25, since a forked child
must not use torch's threads; everything else is the same for any retriever. After each kill every
acknowledged result must be there, equal bit for bit to that of an uninterrupted run, and no other
results may be shown. A complete store is compared as a whole and started again.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.attributions import OneDevice, precompute
from poslens.cache.storage import index
from poslens.cache.storage.encoded import Computed
from poslens.cache.storage.store import ModelKey, Store

METHOD = make_method("terms")
POINT = make_method("terms", {"resampling": "point"})
MODEL = ModelKey("killed", "0123456789abcdef")
WORDS = [
    "the",
    "Moon",
    "pulls",
    "the",
    "water",
    "nearer",
    "to",
    "it",
    "and",
    "the",
    "tide",
    "turns",
    "at",
    "noon",
]


def some_pairs(n: int) -> tuple[TextPair, ...]:
    """Pairs of many lengths; every ninth has no token and fails."""
    generator = random.Random(1)
    return tuple(
        TextPair(
            f"p{k:03}",
            "\u200b" if k % 9 == 8 else "when does the tide turn",
            " ".join(generator.choices(WORDS, k=generator.randint(3, 90))),
            dataset="set",
        )
        for k in range(n)
    )


def lexical() -> Retriever:
    """BM25 over the two texts."""
    return load(resolve("BM25"), device="cpu")


class Telling(Store):
    """A store that reports acknowledged pairs through a pipe."""

    def __init__(self, root: Path, pipe: int) -> None:
        super().__init__(root)
        self._pipe = pipe

    def put_encoded(self, model: ModelKey, method: Method, computed: Computed) -> None:
        """Store, then report."""
        super().put_encoded(model, method, computed)
        names = [pair.pair_id for pair in computed.all_pairs]
        os.write(self._pipe, "".join(f"{name}\n" for name in names).encode())


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of many kills. `completed` runs reached their end between kills."""

    kills: int
    completed: int
    acknowledged: int
    lost: int
    wrong: int
    unsound: int


def kill(
    retriever: Retriever, pairs: Sequence[TextPair], root: Path, kills: int, seed: int = 0
) -> Outcome:
    """Kill `kills` runs over `pairs`; `lost`, `wrong` and `unsound` must be zero."""
    whole = Store(root / "whole")
    started = time.perf_counter()
    _fork(retriever, pairs, whole.root, None)
    limit = time.perf_counter() - started
    expected = {method: _shown(whole, method, pairs) for method in (METHOD, POINT)}
    assert len(expected[METHOD][0]) + len(expected[METHOD][1]) == len(pairs)
    generator = random.Random(seed)
    folder = root / "killed"
    done = completed = acknowledged = lost = wrong = unsound = 0
    told: set[str] = set()
    while done < kills:
        names, killed = _fork(retriever, pairs, folder, generator.uniform(0, 0.7 * limit))
        told |= names
        acknowledged += len(names)
        done += killed
        # This process's caches of files are outdated, since another process changed them.
        index.forget_below(Path("/"))
        store = Store(folder)
        curves, failed = _shown(store, METHOD, pairs)
        lost += len(told - curves.keys() - failed.keys())
        good, bad = expected[METHOD]
        wrong += sum(curve != good.get(name) for name, curve in curves.items())
        wrong += sum(reason != bad.get(name) for name, reason in failed.items())
        wrong += _wrong_results(store, whole, pairs)
        unsound += not sound(store)
        if len(curves) + len(failed) == len(pairs):
            completed += 1
            for method, shown in expected.items():
                wrong += _shown(store, method, pairs) != shown
            store.release()
            shutil.rmtree(folder)
            told.clear()
    return Outcome(done, completed, acknowledged, lost, wrong, unsound)


def _fork(
    retriever: Retriever, pairs: Sequence[TextPair], root: Path, seconds: float | None
) -> tuple[set[str], bool]:
    """Run in a child until it ends or is killed; return what it reported, and whether it was
    killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            precompute(OneDevice(retriever, METHOD), MODEL, METHOD, pairs, Telling(root, writing))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    with open(reading, "rb") as stream:  # noqa: PTH123
        told = stream.read().decode()
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("the run failed by itself")
    # A truncated name was not acknowledged.
    names = set(told[: told.rfind("\n") + 1].split())
    return names, os.WIFSIGNALED(status)


def _shown(
    store: Store, method: Method, pairs: Sequence[TextPair]
) -> tuple[dict[str, bytes], dict[str, str]]:
    found = store.curves(MODEL, method, pairs)
    curves = (curve.tobytes() for curve in found.curves)
    return dict(zip(found.pair_ids, curves, strict=True)), found.failed


def _wrong_results(store: Store, whole: Store, pairs: Sequence[TextPair]) -> int:
    wrong = 0
    for pair in pairs:
        found, right = store.get(MODEL, METHOD, pair), whole.get(MODEL, METHOD, pair)
        if found is not None:
            wrong += right is None or (
                found.document_scores.tobytes() != right.document_scores.tobytes()
                or (found.score, found.document) != (right.score, right.document)
            )
    return wrong


def sound(store: Store) -> bool:
    """Whether SQLite finds the file intact."""
    path = store.path(MODEL, METHOD)
    if not path.exists() or path.stat().st_size == 0:
        return True
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def main() -> None:
    """Kill runs and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        pairs = some_pairs(options.pairs)
        outcome = kill(lexical(), pairs, Path(folder), options.kills, options.seed)
    print(outcome, f"{time.perf_counter() - started:.0f} s")
    if outcome.lost or outcome.wrong or outcome.unsound:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
