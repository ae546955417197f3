"""The device's queue: order, bound, shared computations, and cancellation."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from poslens.attribution.checkpoints import checkpoint, stop_requested
from poslens.attribution.errors import Stopped, UserError
from poslens.compute.queue import GRACE_S, DeviceQueue, Place, ready
from tests.support.requests_of import n_requests


class Clock:
    """A clock that tests advance."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_grace(self) -> None:
        self.now += GRACE_S + 0.1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> DeviceQueue:
    return DeviceQueue(lambda: 3, clock)


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_requests_are_served_in_order(queue: DeviceQueue) -> None:
    order: list[str] = []
    threads = []
    with queue.device_slot():
        for name in "abc":

            def wait(name: str = name) -> None:
                with queue.device_slot():
                    order.append(name)

            threads.append(threading.Thread(target=wait))
            threads[-1].start()
            until(lambda: len(queue._line) == len(threads) + 1)
    for thread in threads:
        thread.join(60)
    assert order == ["a", "b", "c"]


def test_a_request_is_served_between_the_batches_of_a_run(queue: DeviceQueue) -> None:
    order: list[str] = []
    asked = threading.Event()

    def run() -> None:
        for batch in range(4):
            with queue.device_slot():
                order.append(f"batch {batch}")
                if batch == 1:
                    places.append(queue.ask("page", page))
                    until(lambda: len(queue._line) == 2)
                    assert places[0].ahead == 1
                    asked.set()

    def page() -> str:
        with queue.device_slot():
            order.append("page")
        return "shown"

    places: list[Place[str]] = []
    thread = threading.Thread(target=run)
    thread.start()
    assert asked.wait(60)
    assert places[0].result() == "shown"
    thread.join(60)
    assert order == ["batch 0", "batch 1", "page", "batch 2", "batch 3"]


def test_only_equal_requests_are_computed_once(queue: DeviceQueue) -> None:
    calls: list[str] = []

    def work(name: str):
        def compute() -> str:
            with queue.device_slot():
                calls.append(name)
            return name

        return compute

    with queue.device_slot():
        same = [queue.ask("same", work("same")) for _ in range(20)]
        until(lambda: len(queue._line) == 2)
        other = queue.ask("other", work("other"))
        until(lambda: len(queue._line) == 3)
        assert [same[0].ahead, same[19].ahead, other.ahead] == [1, 1, 2] and n_requests(queue) == 2
        for place in same[:19]:
            place.leave()
    assert same[19].result() == "same" and other.result() == "other"
    assert calls == ["same", "other"]
    # Results aren't cached here; the store does that.
    assert queue.ask("same", work("same")).result() == "same" and len(calls) == 3


def test_a_request_beyond_the_bound_is_refused_at_once(queue: DeviceQueue, clock: Clock) -> None:
    def work() -> None:
        with queue.device_slot():
            pass

    with queue.device_slot():
        places = [queue.ask(number, work) for number in range(3)]
        with pytest.raises(
            UserError, match=r"^3 requests are already waiting .*\. Try again in a moment\.$"
        ):
            queue.ask("fourth", work)
        places.append(queue.ask(2, work))  # waiting for the same result takes no extra room
        places[0].leave()
        clock.pass_grace()
        places.append(queue.ask("fourth", work))
    for place in places[1:]:
        place.result()


def test_leaving_the_line_makes_room(queue: DeviceQueue, clock: Clock) -> None:
    def work() -> str:
        with queue.device_slot():
            return "computed"

    with queue.device_slot():
        gone, there = queue.ask("gone", work), queue.ask("there", work)
        until(lambda: len(queue._line) == 3)
        gone.leave()
        assert len(queue._line) == 3, "it may come back in a moment"
        clock.pass_grace()
        until(lambda: len(queue._line) == 2)
        assert there.ahead == 1
    assert there.result() == "computed"
    with pytest.raises(Stopped):
        gone.result()


def test_abandoned_work_is_stopped_and_can_be_started_again(
    queue: DeviceQueue, clock: Clock
) -> None:
    stopped = threading.Event()
    starts: list[int] = []

    def work() -> str:
        starts.append(1)
        with queue.device_slot():
            while len(starts) == 1 and not stop_requested():
                time.sleep(0.01)
        if len(starts) == 1:
            stopped.set()
            raise Stopped("stopped")
        return "done"

    first = queue.ask("key", work)
    first.leave()
    clock.pass_grace()
    assert stopped.wait(60)
    assert queue.ask("key", work).result() == "done" and len(starts) == 2


def test_a_rerun_page_finds_its_work_in_progress(queue: DeviceQueue, clock: Clock) -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def work() -> str:
        calls.append(1)
        with queue.device_slot():
            go_on.wait(60)
            return "stopped" if stop_requested() else "done"

    queue.ask("key", work).leave()
    again = queue.ask("key", work)
    clock.pass_grace()
    go_on.set()
    assert again.result() == "done" and calls == [1]


def test_a_place_in_line_reports_progress(queue: DeviceQueue, clock: Clock) -> None:
    half, go = threading.Event(), threading.Event()

    def work() -> str:
        checkpoint(0.0)
        clock.now += 3
        checkpoint(0.25)
        half.set()
        go.wait(60)
        return "made"

    place = queue.ask("matrix", work)
    assert half.wait(60)
    assert place.progress is not None and place.progress.remaining_seconds == pytest.approx(9)
    go.set()
    until(lambda: place.wait(0.01))
    assert place.result() == "made"
    place.leave()


def test_every_waiting_request_gets_the_error(queue: DeviceQueue) -> None:
    def work() -> None:
        with queue.device_slot():
            raise UserError("The document is empty.")

    with queue.device_slot():
        places = [queue.ask("bad", work) for _ in range(2)]
    for place in places:
        with pytest.raises(UserError, match="empty"):
            place.result()
    with queue.device_slot():  # and the device is free again
        assert n_requests(queue) == 0


def test_an_available_result_is_returned_without_waiting() -> None:
    place = ready("shown")
    assert place.wait(0) and place.result() == "shown" and place.ahead == 0
    place.leave()


def of_another_process(file: Path) -> DeviceQueue:
    """A second queue for the same device, as in another process: file locks work within a process,
    too."""
    return DeviceQueue(lambda: 3, shared=lambda: file)


def test_processes_hold_the_device_one_at_a_time(tmp_path: Path) -> None:
    lines = [of_another_process(tmp_path / "not there yet" / "device.lock") for _ in range(3)]
    holding: list[int] = []
    most = 0

    def work(line: DeviceQueue) -> None:
        nonlocal most
        for _ in range(5):
            with line.device_slot():
                holding.append(1)
                most = max(most, len(holding))
                time.sleep(0.002)
                holding.pop()

    threads = [threading.Thread(target=work, args=(line,)) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and most == 1


def test_a_run_in_another_process_lets_a_page_in_after_its_batch(tmp_path: Path) -> None:
    file = tmp_path / "device.lock"
    page, run = of_another_process(file), of_another_process(file)
    batches, served = 0, threading.Event()

    def ask() -> None:
        with page.device_slot():
            served.set()

    asking = threading.Thread(target=ask)
    while not served.is_set() and batches < 50:
        with run.device_slot():
            if batches == 0:
                asking.start()
            batches += 1
            served.wait(0.1)  # a batch
    asking.join(60)
    # The batch during which it arrived, and at most a few until it had its place.
    assert served.is_set() and batches < 10


def test_a_closed_page_does_not_wait_for_other_processes(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "device.lock"
    here = DeviceQueue(lambda: 3, clock, shared=lambda: file)

    def work() -> None:
        with here.device_slot():
            raise AssertionError("the device is another's")

    with of_another_process(file).device_slot():
        place = here.ask("x", work)
        until(lambda: len(here._line) == 1)
        place.leave()
        clock.pass_grace()
        assert place.wait(60)
        with pytest.raises(Stopped):
            place.result()
    with here.device_slot():
        pass


def test_a_killed_process_releases_the_device(tmp_path: Path) -> None:
    file = tmp_path / "device.lock"
    holds = (
        "import sys, time; from pathlib import Path\n"
        "from poslens.compute.queue import DeviceQueue\n"
        "with DeviceQueue(lambda: 3, shared=lambda: Path(sys.argv[1])).device_slot():\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", holds, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        probe = FileLock(file, blocking=False)
        with pytest.raises(Timeout):
            probe.acquire()
        other.kill()
    with of_another_process(file).device_slot():
        pass


def test_computing_works_if_the_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with of_another_process(tmp_path / "file" / "device.lock").device_slot():
        pass
