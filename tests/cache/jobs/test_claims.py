"""Two jobs on the same pairs: nothing is computed twice, and no job waits for a dead one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from poslens.attribution.errors import UserError
from poslens.cache.jobs.claims import Claims, at_work

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys, time
from pathlib import Path
from poslens.cache.jobs.claims import Claims
with Claims(Path(sys.argv[1])) as claims:
    print(sorted(claims.take(sys.argv[2:])), flush=True)
    time.sleep(60)
"""
# A precompute run that logs each pair before computing it.
JOB = """
import json, sys, time
from pathlib import Path
from types import SimpleNamespace
from poslens.attribution.types import Attribution, Method, TextPair, Token, TokenizedText
from poslens.cache.jobs.attributions import computed, precompute
from poslens.cache.storage.store import ModelKey, Store

root, log, n, pause = sys.argv[1:5]
method = Method("saliency", {"version": 1}, {"normalization": "p99", "resampling": "bin_mean"})
text = TokenizedText.of((Token("a", 0, 1), Token("b", 2, 3)), 2, 512)

class Logged:
    def batches(self, pairs):
        return iter([pairs[i : i + 4] for i in range(0, len(pairs), 4)])
    def compute(self, batches):
        for batch in batches:
            with open(log, "a") as out:
                out.writelines(f"{pair.pair_id}\\n" for pair in batch)
            time.sleep(float(pause))
            yield computed([SimpleNamespace(pair=pair, attribution=Attribution(
                "m", method, pair.pair_id, 0.5, text, text, [0.1, 0.2], [0.3, 0.4]))
                for pair in batch], method)

pairs = [TextPair(f"p{i}", "a b", f"a b {i}", dataset="set") for i in range(int(n))]
print("ready", flush=True)
sys.stdin.readline()
done = precompute(Logged(), ModelKey("m", "0" * 16), method, pairs, Store(Path(root)))
print(json.dumps([done.total, done.done, done.computed, done.stopped]), flush=True)
"""


def hold(folder: Path, *keys: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), *keys],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_claims_can_be_released_one_by_one(tmp_path: Path) -> None:
    with Claims(tmp_path) as one, Claims(tmp_path) as other:
        assert one.take(["a", "b"]) == {"a", "b"} and one.take(["b", "c"]) == {"b", "c"}
        one.release(["a", "nothing"])
        assert other.take(["a", "b", "c"]) == {"a"}
        one.release(["c", "b"])
        assert other.take(["b", "c"]) == {"b", "c"}
        assert len(list(tmp_path.glob("*.*.json"))) == 2
    assert not list(tmp_path.glob("*.json")) and not list(tmp_path.glob("*.alive"))


def test_claims_are_exclusive_until_released(tmp_path: Path) -> None:
    with Claims(tmp_path) as one, Claims(tmp_path) as other:
        assert one.take(["a", "b"]) == {"a", "b"}
        assert other.take(["b", "c"]) == {"c"}
        assert one.take(["a", "c", "d"]) == {"a", "d"}
        one.release(["b"])
        assert other.take(["a", "b"]) == {"b"}
        assert at_work(tmp_path) == 2
    with Claims(tmp_path) as later:
        assert later.take(["a", "b", "c", "d"]) == {"a", "b", "c", "d"}
        assert at_work(tmp_path) == 1
    assert at_work(tmp_path) == 0


def test_contended_states_whether_other_jobs_exist(tmp_path: Path) -> None:
    with Claims(tmp_path) as one:
        one.take(["a"])
        assert not one.contended
        with Claims(tmp_path):
            pass  # came and went between two batches
        one.take(["b"])
        assert one.contended
        with Claims(tmp_path) as other:
            assert other.contended


def test_a_killed_process_holds_no_claims(tmp_path: Path) -> None:
    process, taken = hold(tmp_path, "a", "b")
    try:
        assert taken == "['a', 'b']"
        with Claims(tmp_path) as mine:
            assert mine.take(["a", "c"]) == {"c"}
            assert (at_work(tmp_path), at_work(tmp_path, elsewhere=True)) == (2, 1)
            process.kill()
            process.wait()
            assert mine.take(["a", "b"]) == {"a", "b"}
            assert (at_work(tmp_path), at_work(tmp_path, elsewhere=True)) == (1, 0)
    finally:
        process.kill()
        process.wait()
    leftovers = {path.name for path in tmp_path.iterdir()}
    assert leftovers == {"claims.lock", "jobs"}


def test_two_threads_never_hold_the_same_key(tmp_path: Path) -> None:
    held: Counter[str] = Counter()
    lock = threading.Lock()
    faults: list[str] = []

    def work() -> None:
        with Claims(tmp_path) as claims:
            for step in range(25):
                keys = claims.take([str((step + i) % 7) for i in range(4)])
                with lock:
                    held.update(keys)
                    faults.extend(key for key in keys if held[key] > 1)
                with lock:
                    held.subtract(keys)
                claims.release(keys)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []


def test_a_folder_that_cannot_be_written_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^The cache can't be used"), Claims(tmp_path / "file"):
        pass
    assert at_work(tmp_path / "nothing") == 0


class Jobs:
    """Precompute runs in separate processes, on the same pairs and the same store."""

    def __init__(self, root: Path, n: int) -> None:
        self.root, self._n = root, n
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, pause: float) -> subprocess.Popen[str]:
        log = self.root.with_name(f"log{len(self.processes)}")
        process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(self.root), str(log), str(self._n), str(pause)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def go(self) -> None:
        """Start the first one before all others."""
        for process in self.processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for number, process in enumerate(self.processes):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            while number == 0 and not self.computed(0):
                time.sleep(0.02)

    def result(self, number: int) -> list[int]:
        stdout = self.processes[number].stdout
        assert stdout is not None
        return json.loads(stdout.readline())

    def computed(self, number: int) -> list[str]:
        log = self.root.with_name(f"log{number}")
        return log.read_text().split() if log.exists() else []


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path / "cache", n=40)
    yield jobs
    for process in jobs.processes:
        process.kill()
        process.wait()


def test_processes_share_the_pairs_and_take_over_from_a_killed_one(jobs: Jobs) -> None:
    slow = jobs.start(pause=60)
    for _ in range(2):
        jobs.start(pause=0.2)
    jobs.go()
    until = time.monotonic() + 240
    while time.monotonic() < until and sum(len(jobs.computed(n)) for n in range(3)) < 40:
        time.sleep(0.05)
    held = jobs.computed(0)
    time.sleep(0.8)
    # The others have computed all free pairs and wait for those claimed by the slow one.
    assert len(held) == 4 and all(process.poll() is None for process in jobs.processes)
    every = [pair for n in range(3) for pair in jobs.computed(n)]
    assert sorted(every) == sorted(f"p{i}" for i in range(40)), "computed twice, or not at all"
    slow.kill()
    slow.wait()
    results = [jobs.result(1), jobs.result(2)]
    one, other = jobs.computed(1), jobs.computed(2)
    assert sorted([*one, *other]) == sorted(f"p{i}" for i in range(40)), "the dead one's too"
    assert one and other, "both worked"
    # At its end each reports that everything is stored, and counts only what it computed itself.
    assert [r[:2] for r in results] == [[40, 40], [40, 40]] and not any(r[3] for r in results)
    assert [r[2] for r in results] == [len(one), len(other)]
