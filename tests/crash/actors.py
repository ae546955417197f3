"""SIGKILL random actors of a real Ray run, again and again.

    python -m tests.crash.actors [--actors 8] [--kills 24] [--pairs 8000]

A tiny random model computes saliency on many actors. While results arrive, actors are killed from
time to time, whatever they are doing. In the end each pair must have been stored exactly once, with
the result of a single device.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.attributions import OneDevice, precompute
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import used_model
from poslens.cache.storage.encoded import Computed
from poslens.cache.storage.store import ModelKey, Store

METHOD = make_method("saliency")
PORTION = 16  # pairs in a batch; while many actors work, several batches come at a time


class Counting(Store):
    """A store that counts the results of each pair."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.given: Counter[str] = Counter()

    def put_encoded(self, model: ModelKey, method: Method, computed: Computed) -> None:
        """Store, then count."""
        super().put_encoded(model, method, computed)
        self.given.update(pair.pair_id for pair in computed.all_pairs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of many kills: pairs without a result, pairs stored more than once, and results that
    differ from those of a single device."""

    kills: int
    stored: int
    lost: int
    doubled: int
    wrong: int


def some_pairs(n: int) -> list[TextPair]:
    """Long pairs; three share a document."""
    return [
        TextPair(f"p{k}", f"what pulls water {k}", f"{k // 3} " + "the Moon pulls " * 400)
        for k in range(n)
    ]


def processes() -> list[int]:
    """This process's actors, on this machine."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # one that is just exiting
            if "".join(process.cmdline()[:1]).startswith("ray::_Worker"):
                found.append(process.pid)
    return found


def kill(
    spec: RetrieverSpec, pairs: Sequence[TextPair], root: Path, actors: int, kills: int
) -> Outcome:
    """Kill `kills` actors in a run over `pairs`; `lost`, `doubled` and `wrong` must be zero."""
    from poslens.attribution.retrievers.load import load
    from poslens.cache.jobs.ray_executor import RayExecutor

    chance = random.Random(0)
    key = used_model(spec, "cpu", "auto").fingerprint
    model, store, whole = ModelKey(spec.name, key), Counting(root / "many"), Store(root / "one")
    killed: list[int] = []
    with RayExecutor(spec, METHOD, key, device="cpu", workers=actors) as executor:

        def maybe(step: Progress) -> None:
            often = 4 * kills * PORTION / len(pairs)
            if step.computed and len(killed) < kills and (not killed or chance.random() < often):
                time.sleep(chance.uniform(0, 0.05))
                with suppress(ProcessLookupError):  # one that Ray is just restarting
                    os.kill(victim := chance.choice(processes()), signal.SIGKILL)
                    killed.append(victim)

        precompute(executor, model, METHOD, pairs, store, options=RunOptions(on_progress=maybe))
    precompute(OneDevice(load(spec, device="cpu"), METHOD), model, METHOD, pairs, whole)
    wrong = 0
    for pair in pairs:
        found, right = store.get(model, METHOD, pair), whole.get(model, METHOD, pair)
        assert right is not None
        if found is not None:
            wrong += not np.allclose(
                found.document_scores, right.document_scores, rtol=1e-3, atol=1e-7
            )
    return Outcome(
        kills=len(killed),
        stored=len(store.given),
        lost=len(store.missing(model, METHOD, pairs, retry=True)),
        doubled=sum(times > 1 for times in store.given.values()),
        wrong=wrong,
    )


def main() -> None:
    """Kill actors and print the outcome."""
    from tests.support import tiny_models

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=8)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--pairs", type=int, default=8000)
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        built = tiny_models.build("bert", Path(folder) / "model")
        spec = RetrieverSpec("tiny", "tiny", "dense", f"folder:{built}")
        pairs = some_pairs(options.pairs)
        outcome = kill(spec, pairs, Path(folder), options.actors, options.kills)
    print(outcome, f"{time.perf_counter() - started:.0f} s")
    if outcome.lost or outcome.doubled or outcome.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
