"""Results computed item by item: runs share the work, and take over from a killed one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.claims import Claims, claims_folder
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.storage.store import ModelKey
from tests.support.counts import Count, counts

ROOT = Path(__file__).parents[3]
MODEL, METHOD = ModelKey("m", "0" * 16), Method("test", {"version": 1})
PAIRS = [TextPair(f"p{i}", "q", f"document {i}", dataset="ab"[i % 2]) for i in range(12)]


@pytest.mark.parametrize("portion", [1, 5, 12])
@pytest.mark.parametrize("within", [False, True])
def test_a_stopped_run_keeps_each_finished_item(tmp_path: Path, portion: int, within: bool) -> None:
    computed: list[str] = []
    prepared: list[str] = []

    def compute(pair: TextPair) -> Count:
        assert pair.pair_id in prepared, "told before its portion's first item"
        if within and len(computed) == 7:
            raise Stopped("Stopped within an item.")
        computed.append(pair.pair_id)
        return Count(len(computed))

    with stoppable(lambda: not within and len(computed) == 7):
        stopped = compute_missing(
            counts(tmp_path),
            MODEL,
            METHOD,
            PAIRS,
            compute,
            portion=portion,
            prepare=lambda items: prepared.extend(pair.pair_id for pair in items),
        )
    assert stopped.stopped and (stopped.done, stopped.computed, stopped.failed) == (7, 7, 0)
    assert counts(tmp_path).select(MODEL, METHOD, PAIRS).results == {
        pair.pair_id: Count(n) for n, pair in enumerate(PAIRS[:7], 1)
    }
    rest = compute_missing(counts(tmp_path), MODEL, METHOD, PAIRS, lambda pair: Count(0))
    assert not rest.stopped and (rest.done, rest.computed) == (12, 5)


def test_two_runs_share_the_pairs_and_each_retries_failures_once(tmp_path: Path) -> None:
    computed: list[str] = []
    progresses = {}

    def compute(pair: TextPair) -> Count:
        computed.append(pair.pair_id)
        time.sleep(0.02)
        if pair.pair_id == "p3":
            raise UserError("It cannot be done.")
        return Count(1)

    def work(name: str) -> None:
        progresses[name] = compute_missing(
            counts(tmp_path), MODEL, METHOD, PAIRS, compute, portion=2
        )

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(computed) == sorted(p.pair_id for p in PAIRS)
    assert {(p.total, p.done, p.stopped) for p in progresses.values()} == {(12, 12, False)}
    assert sum(p.computed for p in progresses.values()) == 12
    retrying = RunOptions(retry_failed=True)
    again = compute_missing(counts(tmp_path), MODEL, METHOD, PAIRS, compute, options=retrying)
    assert computed[12:] == ["p3"] and (again.computed, again.failed, again.done) == (1, 1, 12)


def test_a_run_that_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    store = counts(tmp_path)
    with Claims(claims_folder(store.root, MODEL, METHOD, store.kind)) as others:
        others.take(["\0".join(store.key(pair)) for pair in PAIRS])
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        with stoppable(stop.is_set):
            stopped = compute_missing(
                store, MODEL, METHOD, PAIRS, lambda pair: pytest.fail("claimed")
            )
        assert stopped.stopped and stopped.computed == 0
    assert compute_missing(store, MODEL, METHOD, PAIRS, lambda pair: Count(1)).computed == len(
        PAIRS
    )


JOB = """
import json, sys, time
from pathlib import Path
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.items import compute_missing
from poslens.cache.storage.store import ModelKey
from tests.support.counts import Count, counts

root, log, pause = sys.argv[1:4]
kept = counts(Path(root))

def compute(pair):
    with open(log, "a") as out:
        out.write(pair.pair_id + "\\n")
    time.sleep(float(pause))
    return Count(1)

pairs = [TextPair(f"p{i}", "q", f"document {i}", dataset="set") for i in range(20)]
print("ready", flush=True)
sys.stdin.readline()
done = compute_missing(kept, ModelKey("m", "0" * 16), Method("test", {"version": 1}), pairs, compute)
print(json.dumps([done.total, done.done, done.computed]), flush=True)
"""  # noqa: E501


def test_two_processes_compute_each_pair_once_and_take_over_from_a_killed_one(
    tmp_path: Path,
) -> None:
    logs = [tmp_path / f"log{i}" for i in range(3)]
    # The first one hangs in its first pair and is killed there.
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
        until = time.monotonic() + 240
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
