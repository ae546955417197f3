"""A job: one run for each key, and its state before, during and after."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from poslens.attribution.errors import UserError
from poslens.cache.jobs.loop import Progress
from poslens.compute.runs import Job, Report, Run, RunKey, Runs, in_turn


def key(name: str) -> RunKey:
    return (name, "f", "c", "s", "cpu")


class Counted:
    """Work of four items that waits for a signal after each, and may fail with one sentence."""

    def __init__(self, failing: str = "") -> None:
        self.done, self.go, self.told = 0, threading.Semaphore(0), threading.Semaphore(0)
        self.failing = failing
        self.retried: list[bool] = []

    def __call__(self, run: Run, report: Report) -> Progress:
        self.retried.append(run.retry_failed)
        while self.done < 4 and not run.stopping:
            report(Progress(4, self.done, self.done, 0, 2.0 * self.done))
            self.told.release()
            self.go.acquire()
            self.done += 1
        if self.failing:
            raise UserError(self.failing)
        return Progress(4, self.done, self.done, 0, 1.0, run.stopping)


def test_a_job_before_during_and_after_its_run(tmp_path: Path) -> None:
    work, runs, told = Counted(), Runs(lambda: 2), []
    elsewhere = [1]
    failures: dict[str, str] = {}

    def job() -> Job:
        """Created again for each use, as by pages."""
        return Job(
            runs,
            tmp_path,
            key("m"),
            "M",
            4,
            work,
            n_done=lambda: work.done,
            n_elsewhere=lambda: elsewhere[0],
            failures=lambda: failures,
        )

    assert job().run is None and not job().active and job().active_elsewhere
    job().stop()  # nothing to stop
    run = job().start(told.append, retry_failed=True)
    assert job().start() is run and job().run is run, "one run for a key"
    assert job().active and not job().active_elsewhere, "the one at work is this one"
    work.told.acquire()
    assert run.progress.remaining_seconds is None, "nothing is computed yet"
    work.go.release()
    work.told.acquire()
    assert run.progress.remaining_seconds == 3 * 2.0 and job().n_done() == 1
    job().stop()
    assert run.stopping and job().active, "it ends after the item at hand"
    work.go.release()
    run.wait()
    assert run.progress.stopped and job().n_done() == 2 and not job().active
    assert job().error == ""
    assert [step.done for step in told] == [0, 1, 2], "how it ended is told too"
    work.go.release(4)
    assert job().active_elsewhere
    again = job().start()
    again.wait()
    assert again is not run and not again.progress.stopped and work.retried == [True, False]
    assert not job().active_elsewhere, "nothing is missing, so the other run is over other items"
    failures["p"] = "no tokens"
    assert job().active_elsewhere, "it may retry what failed"


def test_the_error_of_a_run_is_shown_until_it_is_restarted(tmp_path: Path) -> None:
    work, runs = Counted(failing="The disk is full."), Runs(lambda: 1)
    job = Job(runs, tmp_path, key("m"), "M", 4, work)
    work.go.release(4)
    job.start().wait()
    assert job.error == "The disk is full."
    work.done, work.failing = 0, ""
    run = job.start()
    assert job.error == ""
    with pytest.raises(UserError, match="Active runs: 1, as many as"):
        Job(runs, tmp_path, key("other"), "O", 4, work).start()
    work.go.release(4)
    run.wait()
    assert job.error == ""


def test_a_stopped_run_stops_its_part_after_itself(tmp_path: Path) -> None:
    """If its chain were stopped second, it would start its next part in between."""
    runs, chain_work, part_work = Runs(lambda: 2), Counted(), Counted()
    part = Job(runs, tmp_path, key("part"), "P", 4, part_work)
    chain = Job(runs, tmp_path, key("chain"), "C", 4, chain_work, parts=(part,))
    first = chain.start()
    second = first.part = part.start(within=first)
    part.stop()
    assert second.stopping and not first.stopping
    chain.stop()
    assert first.stopping
    chain_work.go.release(4)
    part_work.go.release(4)
    first.wait()
    second.wait()


def test_a_job_and_its_parts_count_as_one_run(tmp_path: Path) -> None:
    runs, met = Runs(lambda: 2), threading.Barrier(3, timeout=60)

    def part(run: Run, report: Report) -> Progress:
        met.wait()  # until the other job has reached its part too, and a third was refused
        return run.progress

    def whole(name: str) -> Job:
        one = Job(runs, tmp_path, key(f"{name}, part"), "P", 1, part)
        return Job(runs, tmp_path, key(name), name, 1, in_turn([("P", one)]), parts=(one,))

    wholes = [whole("one"), whole("other")]
    for job in wholes:
        job.start()
    with pytest.raises(UserError, match="Active runs: 2, as many as"):
        whole("third").start()
    met.wait()
    for job in wholes:
        assert job.run is not None
        job.run.wait()
        assert job.error == ""


def test_a_retry_runs_the_parts_with_failures_and_says_why_it_ends(tmp_path: Path) -> None:
    runs, started = Runs(lambda: 2), list[tuple[str, bool]]()

    def part(name: str, failures: dict[str, str]) -> Job:
        def work(run: Run, report: Report) -> Progress:
            started.append((name, run.retry_failed))
            raise UserError("The disk is full.")

        done = {"n_done": lambda: 1, "failures": lambda: failures}
        return Job(runs, tmp_path, key(name), name, 1, work, **done)

    parts = [("good", part("good", {})), ("bad", part("bad", {"pair": "no word"}))]
    whole = Job(runs, tmp_path, key("whole"), "W", 2, in_turn(parts), parts=(parts[1][1],))
    for retry in (False, True):
        whole.start(retry_failed=retry).wait()
        assert whole.error == ("The disk is full." if retry else "")
    assert started == [("bad", True)]


def test_a_job_that_is_stopped_in_its_last_part_is_not_done(tmp_path: Path) -> None:
    runs, begun = Runs(lambda: 2), threading.Event()

    def part(run: Run, report: Report) -> Progress:
        begun.set()
        while not run.stopping:
            time.sleep(0.01)
        return Progress(8, 2, 2, 0, 1.0, stopped=True)

    one = Job(runs, tmp_path, key("part"), "P", 8, part, n_done=lambda: 2)
    whole = Job(runs, tmp_path, key("whole"), "W", 8, in_turn([("P", one)]), parts=(one,))
    run = whole.start()
    assert begun.wait(60)
    whole.stop()
    run.wait()
    assert (run.progress.done, run.progress.total, run.progress.stopped) == (0, 1, True)


def test_a_job_reports_the_progress_of_its_part(tmp_path: Path) -> None:
    """A bar at 0 of 2 for minutes looks like a run that hangs."""
    runs, half, go = Runs(lambda: 2), threading.Event(), threading.Event()

    def part(run: Run, report: Report) -> Progress:
        run.stage = "Encoding texts"
        report(Progress(8, 2, 2, 0, 4.0))
        half.set()
        go.wait(60)
        return Progress(8, 8, 8, 0, 16.0)

    one = Job(runs, tmp_path, key("part"), "P", 8, part)
    work = in_turn([("first", one), ("second", one)])
    whole = Job(runs, tmp_path, key("whole"), "W", 2, work, parts=(one,))
    told: list[float] = []

    def hear(_: Progress) -> None:
        assert whole.run is not None
        told.append(whole.run.share)

    run = whole.start(hear)
    assert half.wait(60)
    while run.part is None:  # it reports progress before `start` returns
        time.sleep(0.01)
    assert run.counts == "first · Encoding texts · 2 of 8 · about 12 s left"
    assert run.share == pytest.approx(1 / 8) and len(told) >= 2
    go.set()
    run.wait()
    assert run.error == "" and run.counts.endswith("2 of 2") and run.share == 1


def test_active_runs_are_those_of_the_owners_without_parts_and_maintenance(tmp_path: Path) -> None:
    runs, let_go = Runs(lambda: 9), threading.Event()
    mine, other = tmp_path / "mine", tmp_path / "other"

    def work(run: Run, report: Report) -> Progress:
        while not run.stopping:
            let_go.wait(0.01)
        return run.progress

    def job(
        name: str, owner: Path = mine, parts: tuple[Job, ...] = (), upkeep: bool = False
    ) -> Job:
        return Job(runs, owner, key(name), name, 1, work, parts=parts, doing="map", upkeep=upkeep)

    part = job("part")
    whole = job("whole", parts=(part,)).start()
    rest = (job("alone").start(), job("his", other).start())
    started = [whole, part.start(within=whole), *rest]
    kept = job("upkeep", upkeep=True).start()
    _, inner, alone, his = started
    whole.part = inner
    assert runs.active({mine}, upkeep=False) == [whole, alone]
    assert runs.active({mine}, upkeep=True) == [whole, alone, kept]
    assert runs.active({mine, other}, upkeep=False) == [whole, alone, his]
    assert runs.active(set(), upkeep=True) == []
    assert [run.label for run in started] == ["whole: map", "part: map", "alone: map", "his: map"]
    whole.stop()
    assert inner.stopping and not alone.stopping, "what it started stops with it"
    for run in (*started, kept):
        run.stop()
        run.wait()
    assert runs.active({mine, other}, upkeep=True) == []
