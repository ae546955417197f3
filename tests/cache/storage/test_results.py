"""Results of any kind: reading again equals reading afresh, and two runs share the work."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attribution.errors import UserError
from attribution.types import Method, TextPair
from cache.storage import results
from cache.storage.decoded import Decoded
from cache.storage.results import Results, pair_key
from cache.storage.store import ModelKey, Store

ROOT = Path(__file__).parents[3]
MODEL, METHOD = ModelKey("m", "0" * 16), Method("test", {"version": 1})
PAIRS = [TextPair(f"p{i}", "q", f"document {i}", dataset="ab"[i % 2]) for i in range(12)]


def kept(root: Path, unpack: Callable[[dict], object] = lambda f: f["value"]) -> Results:
    return Results(root, "test", key=pair_key, pack=lambda v: {"value": v}, unpack=unpack)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], results.Stored]:
    """What a process that has read nothing yet finds."""

    def read(root: Path) -> results.Stored:
        with monkeypatch.context() as patch:
            patch.setattr(results, "_DECODED", Decoded(1 << 20))
            return kept(root).select(MODEL, METHOD, PAIRS)

    return read


def test_reading_again_equals_reading_afresh_whatever_happened(
    fresh: Callable[[Path], results.Stored], tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    store = kept(tmp_path)
    expected: dict[str, int] = {}
    failures: dict[str, str] = {}
    for step in range(60):
        pair = PAIRS[generator.integers(len(PAIRS))]
        expected.pop(pair.pair_id, None)
        failures.pop(pair.pair_id, None)
        what = generator.integers(4)
        if what == 0:
            store.put_failures(MODEL, METHOD, [(pair, f"because {step}")])
            failures[pair.pair_id] = f"because {step}"
        elif what == 1:  # damaged: counts as missing
            store._put(MODEL, METHOD, [(pair, b"\0\0\0\0{}", None)])
        else:
            store.put(MODEL, METHOD, [(pair, step)])
            expected[pair.pair_id] = step
        found = store.select(MODEL, METHOD, PAIRS)
        assert found == fresh(tmp_path)
        assert (found.results, found.failed) == (expected, failures)
        assert list(found.results) == [p.pair_id for p in PAIRS if p.pair_id in expected]
    missing = [p.pair_id for p in store.missing(MODEL, METHOD, PAIRS)]
    assert missing == [p.pair_id for p in PAIRS if p.pair_id not in expected | failures]
    retried = {p.pair_id for p in store.missing(MODEL, METHOD, PAIRS, retry=True)}
    assert retried == {p.pair_id for p in PAIRS} - set(expected)
    with Store(tmp_path).writing(MODEL, METHOD) as db:
        db.execute("DELETE FROM other")
    assert store.select(MODEL, METHOD, PAIRS).results == fresh(tmp_path).results == {}


def test_only_what_is_new_is_decoded(tmp_path: Path) -> None:
    decoded: list[int] = []
    store = kept(tmp_path, lambda fields: decoded.append(fields["value"]) or fields["value"])
    store.put(MODEL, METHOD, [(pair, number) for number, pair in enumerate(PAIRS)])
    for _ in range(3):
        assert len(store.select(MODEL, METHOD, PAIRS).results) == len(PAIRS)
    assert sorted(decoded) == list(range(12))
    store.put(MODEL, METHOD, [(PAIRS[3], 99)])
    kept(tmp_path, store._unpack).select(MODEL, METHOD, PAIRS)
    assert decoded[12:] == [99]
    other = Method("test", {"version": 2})
    kept(tmp_path / "other").put(MODEL, METHOD, [(PAIRS[0], 7)])
    assert kept(tmp_path / "other").select(MODEL, METHOD, PAIRS).results == {"p0": 7}
    assert store.select(MODEL, other, PAIRS).results == {}


def test_more_pairs_than_one_question_may_name(tmp_path: Path) -> None:
    pairs = [TextPair(f"p{i}", "q", "d", dataset="set") for i in range(1203)]
    store = kept(tmp_path)
    store.put(MODEL, METHOD, [(pair, number) for number, pair in enumerate(pairs)])
    found = store.select(MODEL, METHOD, pairs)
    assert found.results == {f"p{i}": i for i in range(1203)}
    assert store.missing(MODEL, METHOD, pairs) == []


def test_what_is_kept_in_memory_is_bounded() -> None:
    memory, read = Decoded(100), []
    for number in range(50):
        memory.read(number, b"x" * 30, lambda payload: read.append(1) or len(payload))
        assert memory.size <= 100
    memory.read(49, b"x" * 30, lambda payload: pytest.fail("decoded again"))
    assert memory.read(0, b"x" * 30, lambda payload: "again") == "again"
    assert memory.read(49, b"y" * 20, lambda payload: "changed") == "changed"
    assert memory.read("damaged", b"z", lambda payload: None) is None
    assert memory.read("damaged", b"z", lambda payload: "whole") == "whole"


# -- runs ------------------------------------------------------------------------------------------


def test_two_runs_share_the_pairs_and_try_failures_once_each(tmp_path: Path) -> None:
    computed: list[str] = []
    progresses = {}

    def compute(pair: TextPair) -> int:
        computed.append(pair.pair_id)
        time.sleep(0.02)
        if pair.pair_id == "p3":
            raise UserError("It cannot be done.")
        return 1

    def work(name: str) -> None:
        progresses[name] = kept(tmp_path).run(MODEL, METHOD, PAIRS, compute, portion=2)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(computed) == sorted(p.pair_id for p in PAIRS)
    assert {(p.total, p.done, p.stopped) for p in progresses.values()} == {(12, 12, False)}
    assert sum(p.computed for p in progresses.values()) == 12
    again = kept(tmp_path).run(MODEL, METHOD, PAIRS, compute, retry_failed=True)
    assert computed[12:] == ["p3"] and (again.computed, again.failed, again.done) == (1, 1, 12)


def test_a_run_that_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    store = kept(tmp_path)
    with results.Claims(store._claims_folder(MODEL, METHOD)) as others:
        others.take([store._claim(pair) for pair in PAIRS])
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        stopped = store.run(
            MODEL, METHOD, PAIRS, lambda pair: pytest.fail("claimed"), should_stop=stop.is_set
        )
        assert stopped.stopped and stopped.computed == 0
    assert store.run(MODEL, METHOD, PAIRS, lambda pair: 1).computed == len(PAIRS)


JOB = """
import json, sys, time
from pathlib import Path
from attribution.types import Method, TextPair
from cache.storage.results import Results, pair_key
from cache.storage.store import ModelKey

root, log, pause = sys.argv[1:4]
kept = Results(Path(root), "test", key=pair_key, pack=lambda v: {"value": v}, unpack=lambda f: f["value"])

def compute(pair):
    with open(log, "a") as out:
        out.write(pair.pair_id + "\\n")
    time.sleep(float(pause))
    return 1

pairs = [TextPair(f"p{i}", "q", f"document {i}", dataset="set") for i in range(20)]
print("ready", flush=True)
sys.stdin.readline()
done = kept.run(ModelKey("m", "0" * 16), Method("test", {"version": 1}), pairs, compute)
print(json.dumps([done.total, done.done, done.computed]), flush=True)
"""  # noqa: E501


def test_two_processes_compute_each_pair_once_and_take_over_from_a_killed_one(
    tmp_path: Path,
) -> None:
    logs = [tmp_path / f"log{i}" for i in range(3)]
    # The first one hangs in its first pair, and is killed there.
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(tmp_path / "cache"), str(log), str(pause)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for log, pause in zip(logs, (60, 0.05, 0.05), strict=True)
    ]

    def computed(number: int) -> list[str]:
        return logs[number].read_text().split() if logs[number].exists() else []

    try:
        for job in jobs:
            assert job.stdout is not None and job.stdout.readline() == "ready\n"
        for number, job in enumerate(jobs):
            assert job.stdin is not None
            job.stdin.write("\n")
            job.stdin.flush()
            while number == 0 and not computed(0):
                time.sleep(0.02)
        until = time.monotonic() + 60
        while time.monotonic() < until and sum(len(computed(n)) for n in range(3)) < 20:
            time.sleep(0.05)
        every = [pair for n in range(3) for pair in computed(n)]
        assert sorted(every) == sorted(f"p{i}" for i in range(20)), "twice, or not at all"
        held = computed(0)
        time.sleep(0.3)
        assert len(held) == 1 and all(job.poll() is None for job in jobs), "they wait for the first"
        jobs[0].kill()
        ended = [json.loads(job.stdout.readline()) for job in jobs[1:] if job.stdout is not None]
        one, other = computed(1), computed(2)
        assert sorted([*one, *other]) == sorted(f"p{i}" for i in range(20)) and one and other
        assert ended == [[20, 20, len(one)], [20, 20, len(other)]]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
