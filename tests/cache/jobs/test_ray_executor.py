"""Actors give the same results as one device; a killed actor costs only time. Skips without Ray."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.jobs.attributions import precompute
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.jobs.ray_executor import (
    IN_FLIGHT,
    LOADS,
    UNAVAILABLE_S,
    RayExecutor,
    _Loaded,
    _Worker,
)
from poslens.cache.keys import used_model
from poslens.cache.storage import codec
from poslens.cache.storage.encoded import encoded
from poslens.cache.storage.store import ModelKey
from tests.crash.actors import Counting, processes

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
    """Addresses on which this process, its children and Ray's processes listen."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


class Killing(RayExecutor):
    """Kills a worker before certain batches: one after the first result, and another worker (or its
    replacement) halfway through. A batch is still to be computed then, so no kill happens after the
    end."""

    killed: tuple[int, ...] = ()

    def batches(self, pairs: Sequence[TextPair]) -> Iterator[list[TextPair]]:
        """Batches of two pairs."""
        whole = super().batches(pairs)
        parts = [batch[at : at + 2] for batch in whole for at in range(0, len(batch), 2)]
        # As many batches as all workers hold are handed out before the first result.
        kills = (2 * IN_FLIGHT, len(parts) // 2)
        for number, batch in enumerate(parts):
            if len(self.killed) < sum(number >= kill for kill in kills):
                victim = next((one for one in processes() if one not in self.killed), None)
                with suppress(ProcessLookupError):  # an actor that Ray is just restarting
                    if victim is not None:
                        os.kill(victim, signal.SIGKILL)
                        self.killed += (victim,)
            yield batch


def test_killed_workers_lose_nothing_and_repeat_nothing(
    spec: RetrieverSpec, tmp_path: Path, tiny: Callable
) -> None:
    if find_spec("ray") is None:  # it reads its settings on import, so not imported here
        pytest.skip("Ray is not installed: requirements-ray.txt")
    store = Counting(tmp_path / "cache")
    key = used_model(spec, "cpu", "auto").fingerprint
    model = ModelKey("tiny", key)
    steps: list[Progress] = []
    executor = Killing(spec, METHOD, key, device="cpu", workers=2)
    with executor:
        assert len(processes()) == 2
        # Only its own processes can reach it, and only with this run's token.
        addresses = listening()
        assert addresses and {a.removeprefix("::ffff:") for a in addresses} == {"127.0.0.1"}
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0" and os.environ["RAY_AUTH_TOKEN"]

        told = RunOptions(on_progress=steps.append)
        last = precompute(executor, model, METHOD, PAIRS, store, options=told)
    assert len(executor.killed) == 2
    assert (last.total, last.done, last.computed, last.failed) == (25, 25, 25, 1)
    assert store.given == Counter(pair.pair_id for pair in PAIRS)
    assert [s.done for s in steps] == sorted({s.done for s in steps})
    stored = store.curves(model, METHOD, PAIRS)
    assert "reads no word of the query" in stored.failed["bad"]
    alone_each = attribute(tiny("bert"), METHOD, PAIRS[:-1])
    for pair, alone in zip(PAIRS[:-1], alone_each, strict=True):
        found = store.get(model, METHOD, pair)
        assert found is not None
        np.testing.assert_allclose(found.document_scores, alone.document_scores, rtol=1e-4)
    assert precompute(executor, model, METHOD, PAIRS, store).computed == 0


class Reference:
    """The outcome of a task: its result or its error."""

    def __init__(self, given: object) -> None:
        self.given = given


class Unavailable(Exception):
    """Ray's error for an actor that is being restarted."""


class Actor:
    """An actor that is unavailable until `clock` reaches `until`; then it states why it computes
    nothing."""

    def __init__(self, clock: SimpleNamespace, until: float) -> None:
        self.clock, self.until = clock, until
        self.load = SimpleNamespace(remote=lambda: self.answer(_Loaded("f", "cpu", 512, False)))
        self.compute = SimpleNamespace(
            remote=lambda batch: self.answer(encoded([], METHOD, [(pair, "why") for pair in batch]))
        )

    def answer(self, given: object) -> Reference:
        return Reference(given if self.clock.now >= self.until else Unavailable())


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that is advanced by sleeping, and a Ray that answers at once."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        "poslens.cache.jobs.ray_executor.time",
        SimpleNamespace(
            monotonic=lambda: clock.now,
            sleep=lambda s: setattr(clock, "now", clock.now + s),
        ),
    )

    def get(reference: Reference) -> object:
        if isinstance(reference.given, Exception):
            raise reference.given
        return reference.given

    names = ("RayActorError", "ObjectLostError", "OutOfMemoryError", "RayTaskError")
    errors = SimpleNamespace(
        **{name: type(name, (Exception,), {}) for name in names}, ActorUnavailableError=Unavailable
    )
    errors.RayActorError = Unavailable  # as in Ray, one class derives from the other
    fake = SimpleNamespace(
        exceptions=errors,
        get=get,
        wait=lambda waited, **_: (list(waited), []),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    monkeypatch.setattr("poslens.cache.jobs.ray_executor.find_spec", lambda name: True)
    return clock


def run(spec: RetrieverSpec, actors: list[Actor]) -> Counter[str]:
    executor = RayExecutor(spec, METHOD, "f")
    executor._workers, executor._loaded = actors, _Loaded("f", "cpu", 512, False)
    found = executor.compute(executor.batches(PAIRS))
    return Counter(pair.pair_id for part in found for pair, _ in part.failures)


def test_an_actor_that_stays_unavailable_is_not_waited_for_forever(
    spec: RetrieverSpec, turned: SimpleNamespace
) -> None:
    once_each = Counter(pair.pair_id for pair in PAIRS)
    assert run(spec, [Actor(turned, UNAVAILABLE_S / 2) for _ in range(2)]) == once_each
    assert turned.now == pytest.approx(UNAVAILABLE_S / 2, abs=5), "it came up in time"
    # It has no cost while others compute.
    assert run(spec, [Actor(turned, 0), Actor(turned, float("inf"))]) == once_each
    began = turned.now
    with pytest.raises(UserError, match="Workers die while they load"):
        run(spec, [Actor(turned, float("inf")) for _ in range(2)])
    # Both are waited for at the same time, with separate pauses.
    assert UNAVAILABLE_S <= turned.now - began <= (LOADS + 1) * UNAVAILABLE_S


def test_a_result_too_large_to_store_is_recorded_as_a_failed_pair(
    spec: RetrieverSpec, tiny: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = TextPair("large", "what pulls water", "the Moon pulls water " * 40)
    small = TextPair("small", "what pulls water", "the Moon")
    worker = _Worker(spec, METHOD, "cpu", "auto")
    worker._retriever = tiny("bert")
    monkeypatch.setattr(codec, "MAX_RAW", 1500)
    outcome = worker.compute([large, small])
    assert outcome.pairs == [small] and len(outcome.payloads) == 1
    ((pair, reason),) = outcome.failures
    assert pair == large and "without the matrix" in reason


def test_a_run_that_cannot_start_is_reported_in_one_sentence(
    spec: RetrieverSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poslens.cache.jobs.ray_executor.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^Ray is not installed: install it with"):
        RayExecutor(spec, METHOD, "0" * 16)
