"""Actors compute what one device would; a killed one costs nothing but time. Skips without Ray."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

from attribution.errors import UserError
from attribution.methods import make_method
from attribution.methods.saliency import attribute
from attribution.retrievers.specs import RetrieverSpec
from attribution.types import TextPair
from cache.jobs.attributions import precompute
from cache.jobs.loop import Progress, Steering
from cache.jobs.ray_executor import RayExecutor
from cache.keys import used_model
from cache.storage.store import ModelKey
from tests.crash.actors import Counting, kill, some_pairs

METHOD = make_method("saliency")
FAILING = TextPair("bad", "\u200b", "the Moon", dataset="set")
PAIRS = (
    *(
        TextPair(
            f"p{n:02}", "what pulls water", "the Moon pulls water " * 400 + str(n), dataset="s"
        )
        for n in range(24)
    ),
    FAILING,
)


@pytest.fixture
def spec(tiny_folder: Callable[..., Path]) -> RetrieverSpec:
    return RetrieverSpec("tiny", "tiny", "dense", f"folder:{tiny_folder('bert')}")


def listening() -> list[str]:
    """Addresses on which Ray's processes, this one and its children, take connections."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_a_killed_worker_costs_nothing_and_repeats_nothing(
    spec: RetrieverSpec, tmp_path: Path, tiny: Callable
) -> None:
    if find_spec("ray") is None:  # not imported here: it reads its settings when it is
        pytest.skip("Ray is not installed: requirements-ray.txt")
    store = Counting(tmp_path / "cache")
    key = used_model(spec, "cpu", "auto").fingerprint
    model = ModelKey("tiny", key)
    killed: list[int] = []
    steps: list[Progress] = []
    with RayExecutor(spec, METHOD, key, device="cpu", workers=2) as executor:
        assert len(set(executor.pids)) == 2 and os.getpid() not in executor.pids
        # Its own processes alone can reach it, and only with this run's token.
        addresses = listening()
        assert addresses and {a.removeprefix("::ffff:") for a in addresses} == {"127.0.0.1"}
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0" and os.environ["RAY_AUTH_TOKEN"]

        def kill(step: Progress) -> None:
            steps.append(step)
            if step.computed and not killed:
                killed.append(executor.pids[0])
                os.kill(killed[0], signal.SIGKILL)

        told = Steering(on_progress=kill)
        last = precompute(executor, model, METHOD, PAIRS, store, steering=told)
    assert killed and (last.total, last.done, last.computed, last.failed) == (25, 25, 25, 1)
    assert store.given == Counter(pair.pair_id for pair in PAIRS)
    assert [s.done for s in steps] == sorted({s.done for s in steps})
    stored = store.curves(model, METHOD, PAIRS)
    assert "The query has no token" in stored.failed["bad"]
    retriever = tiny("bert")
    for pair in PAIRS[:3]:
        (alone,) = attribute(retriever, METHOD, [pair])
        found = store.get(model, METHOD, pair)
        assert found is not None
        np.testing.assert_allclose(found.document_scores, alone.document_scores, rtol=1e-4)
    assert precompute(executor, model, METHOD, PAIRS, store).computed == 0


def test_actors_killed_at_random_lose_and_double_nothing(
    spec: RetrieverSpec, tmp_path: Path
) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: requirements-ray.txt")
    outcome = kill(spec, some_pairs(240), tmp_path, actors=3, kills=3)
    assert outcome.kills > 0 and outcome.stored == 240
    assert (outcome.lost, outcome.doubled, outcome.wrong) == (0, 0, 0), outcome


def test_what_cannot_run_is_a_sentence(
    spec: RetrieverSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache.jobs.ray_executor.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^Ray is not installed: install it with"):
        RayExecutor(spec, METHOD, "0" * 16)
