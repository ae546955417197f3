"""Loading a model doesn't block sessions whose model is loaded, and caches are bounded."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
import torch
from filelock import FileLock

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.base import LibraryCheck, Retriever
from poslens.attribution.retrievers.self_check import SelfCheck
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.jobs.loop import Progress
from poslens.cache.storage import connections
from poslens.compute import model_pool
from poslens.compute.compute import Compute
from poslens.compute.model_pool import ModelPool, weights_to_load
from poslens.compute.runs import KEPT_RUNS, Job, Report, Run, Runs

CHECKED = SelfCheck(LibraryCheck(0.0, "score"))


@dataclass(eq=False)
class Weights:
    weight_bytes: int = 10
    itself: object = None
    """A model has reference cycles."""

    def __post_init__(self) -> None:
        self.itself = self


def ready(value: object) -> Callable[[], object]:
    return lambda: value


def test_loading_a_model_does_not_block_sessions_with_loaded_models(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, hold, loading = Compute(tmp_path), threading.Event(), threading.Event()
    bert, other = (
        RetrieverSpec(name, name, "dense", f"folder:{tiny_folder(name)}")
        for name in ("bert", "distilbert")
    )
    pair = TextPair("p", "what melts", "Ice melts. Stone stays.")
    compute.explain(pair, bert, make_method("saliency"))
    real = model_pool.load

    def slow(spec: RetrieverSpec, *rest: str) -> object:
        loading.set()
        hold.wait(300)
        return real(spec, *rest)

    monkeypatch.setattr(model_pool, "load", slow)
    thread = threading.Thread(target=lambda: compute.retriever(compute.identify(other)))
    thread.start()
    assert loading.wait(120)
    done = threading.Event()

    def ask() -> None:
        compute.explain(replace(pair, pair_id="q"), bert, make_method("saliency"))
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    served = done.wait(120)
    hold.set()
    thread.join()
    assert served


def test_concurrent_requests_load_a_model_once() -> None:
    pool, loads = ModelPool(lambda: 100), []

    def load() -> Weights:
        loads.append(1)
        time.sleep(0.1)
        return Weights()

    found: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(pool.get(("a", "cpu"), load, lambda _: CHECKED))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1 and len(set(map(id, found))) == 1


def test_a_canceled_request_stops_waiting_for_anothers_load() -> None:
    pool, hold, begun = ModelPool(lambda: 100), threading.Event(), threading.Event()

    def load() -> Weights:
        begun.set()
        hold.wait(300)
        return Weights()

    thread = threading.Thread(target=lambda: pool.get(("a", "cpu"), load, lambda _: CHECKED))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(Stopped), stoppable(lambda: True):
        pool.get(("b", "cpu"), Weights, lambda _: CHECKED)
    hold.set()
    thread.join()
    assert len(pool._loaded) == 1


def test_a_load_that_exits_does_not_block_the_next_one() -> None:
    pool = ModelPool(lambda: 100)

    def exits() -> Weights:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        pool.get(("a", "cpu"), exits, lambda _: CHECKED)
    assert isinstance(pool.get(("a", "cpu"), Weights, lambda _: CHECKED), Weights)


def test_cached_models_and_checks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each unloaded model causes a slow garbage collection here.
    monkeypatch.setattr(model_pool, "MAX_MODELS", 2)
    monkeypatch.setattr(model_pool, "_MAX_CHECKS", 3)
    pool = ModelPool(lambda: 1000)
    for number in range(4):
        pool.get((str(number), "cpu"), Weights, lambda _: CHECKED)
        pool.get(("0", "cpu"), Weights, lambda _: CHECKED)
    assert len(pool._loaded) == 2 and pool.self_check(("0", "cpu")) is CHECKED
    assert sum(pool.self_check((str(n), "cpu")) is not None for n in range(4)) == 3
    monkeypatch.setattr(model_pool, "MAX_MODELS", 64)
    small = ModelPool(lambda: 25)
    for number in range(3):
        small.get((str(number), "cpu"), Weights, lambda _: CHECKED)
    assert len(small._loaded) == 2


def test_runs_are_bounded(tmp_path: Path) -> None:
    runs, hold = Runs(lambda: 3), threading.Event()

    def work(run: Run, report: Report) -> Progress:
        hold.wait(300)
        return run.progress

    def key(number: int) -> tuple[str, str, str, str, str]:
        return ("m", "f", "c", str(number), "cpu")

    started = [Job(runs, tmp_path, key(number), "m", 1, work).start() for number in range(3)]
    assert Job(runs, tmp_path, key(0), "m", 1, work).start() is started[0], "the same one is shared"
    with pytest.raises(UserError, match="Active runs: 3, as many as"):
        Job(runs, tmp_path / "other", key(0), "m", 1, work).start()
    hold.set()
    for run in started:
        run.wait()
    for number in range(2 * KEPT_RUNS):
        Job(runs, tmp_path, key(number), "m", 1, work).start().wait()
    assert len(runs._runs) <= KEPT_RUNS + 1
    assert runs.find(tmp_path, key(2 * KEPT_RUNS - 1)) is not None


def test_runs_are_removed_with_their_owner(tmp_path: Path) -> None:
    runs = Runs(lambda: 3)

    def work(run: Run, report: Report) -> Progress:
        while not run.stopping:
            time.sleep(0.01)
        return run.progress

    own = Job(runs, tmp_path / "own", ("m", "f", "c", "s", "cpu"), "m", 1, work).start()
    other = Job(runs, tmp_path / "other", ("m", "f", "c", "s", "cpu"), "m", 1, work).start()
    runs.end(tmp_path / "own")
    assert not own.active and other.active and len(runs._runs) == 1
    runs.end(tmp_path / "other")


def _n_locks() -> int:
    return sum(isinstance(each, FileLock) for each in gc.get_objects())


def test_unused_locks_are_deleted(tmp_path: Path) -> None:
    before = _n_locks()
    for number in range(300):
        path = tmp_path / "v3" / f"{number:016x}" / "x.db"
        with connections.locked(path), connections.locked(path):
            pass
    assert _n_locks() <= before
    held = tmp_path / "v3" / "held" / "x.db"
    with connections.locked(held):
        for number in range(300):
            with connections.locked(tmp_path / "v3" / f"{number:016x}" / "y.db"):
                pass
        # The lock is reentrant; another lock object would block forever.
        with connections.locked(held, timeout=1):
            pass


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_garbage_collection_settings_are_restored(on: bool, fails: bool) -> None:
    during: list[bool] = []

    def loading() -> Weights:
        during.append(gc.isenabled())
        if fails:
            raise UserError("The weights are not whole.")
        return Weights()

    was_on = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with suppress(UserError):
            ModelPool(lambda: 100).get(("a", "cpu"), loading, lambda _: CHECKED)
        assert during == [False] and gc.isenabled() is on
    finally:
        (gc.enable if was_on else gc.disable)()
        gc.unfreeze()


@dataclass
class Loading:
    """Loads models into `pool` as on a device with `memory`: a model that exceeds it next to those
    that still exist is refused as by `load`."""

    pool: ModelPool
    memory: int
    models: weakref.WeakSet[Weights] = field(default_factory=weakref.WeakSet)
    attempts: int = 0

    def __call__(self, name: str, n_bytes: int, expected: int | None = None) -> Retriever:
        def load() -> Retriever:
            self.attempts += 1
            loaded = Weights(n_bytes)
            self.models.add(loaded)
            try:
                if sum(model.weight_bytes for model in self.models) > self.memory:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
            except torch.OutOfMemoryError as error:
                raise UserError(f"{name} does not fit into the free memory.") from error
            return cast(Retriever, loaded)

        size = n_bytes if expected is None else expected
        return self.pool.get((name, "cuda"), load, lambda _: CHECKED, expected_bytes=lambda: size)

    def loaded(self, names: str) -> list[str]:
        return [name for name in names if self.pool.loaded((name, "cuda"))]


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_room_is_made_before_a_model_loads(unfrozen: None) -> None:
    load = Loading(ModelPool(lambda: 10), memory=24)
    for name in "abc":
        load(name, 14)
    assert load.attempts == 3 and load.loaded("abc") == ["c"]
    load = Loading(ModelPool(lambda: 24), memory=24)
    for name in "abc":
        load(name, 8)
    load("d", 10)
    assert load.attempts == 4 and load.loaded("abcd") == ["c", "d"], "no more than necessary"


def test_a_model_that_runs_out_of_memory_loads_once_the_others_are_unloaded(unfrozen: None) -> None:
    """Its size was unknown, or the limit is larger than the memory that is free."""
    load = Loading(ModelPool(lambda: 100), memory=24)
    load("a", 8)
    load("b", 8)
    load("c", 14, expected=0)
    assert load.attempts == 4 and load.loaded("abc") == ["c"]
    with pytest.raises(UserError, match="d does not fit"):
        load("d", 30)
    assert load.attempts == 6 and not load.loaded("abcd")
    with pytest.raises(UserError, match="d does not fit"):
        load("d", 30)
    assert load.attempts == 7, "there was nothing to unload"


def test_models_in_use_stay_loaded(unfrozen: None) -> None:
    load = Loading(ModelPool(lambda: 20), memory=24)
    used = load("a", 8)
    load("b", 8)
    load("c", 8)
    assert load.loaded("abc") == ["a", "c"] and load("a", 8) is used
    load("d", 14, expected=0)
    assert load.loaded("abcd") == ["a", "d"] and load("a", 8) is used
    used_too = load("d", 14)
    with pytest.raises(UserError, match="e does not fit"):
        load("e", 8)
    assert load("a", 8) is used and load("d", 14) is used_too
    del used, used_too
    load("e", 14)
    assert load.loaded("ade") == ["e"]


def test_the_size_of_a_model_is_known_before_it_loads(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder("bert")
    spec = RetrieverSpec("tiny", "tiny", "dense", f"folder:{folder}")
    for precision in ("float32", "bfloat16"):
        monkeypatch.setenv("POSLENS_PRECISION", precision)
        assert weights_to_load(spec) == model_pool.load_model(spec).weight_bytes
    two = replace(spec, query_source=f"folder:{folder}")
    assert weights_to_load(two) == 2 * weights_to_load(spec)
    assert weights_to_load(replace(spec, source="endpoint:far")) == 0
    assert weights_to_load(replace(spec, source=f"folder:{tmp_path / 'missing'}")) == 0
    compute, room = Compute(tmp_path), list[float]()
    monkeypatch.setattr(compute.models, "_make_room", room.append)
    compute.retriever(compute.identify(spec))
    assert room == [weights_to_load(spec)] * 2
