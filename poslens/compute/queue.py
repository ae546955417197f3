"""A first-come, first-served queue for the device, with a limited length.

Runs over data sets and requests from pages share one queue. A run queues again after every batch,
so that requests that arrived in the meantime are served first. A page's request is computed in a
thread while the page waits. Pages with the same request share one computation, which ends early if
they all close. Processes that share a cache also take turns at the device.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import FileLock

from poslens.attribution.checkpoints import checkpoint, reporting, stoppable
from poslens.attribution.errors import UserError
from poslens.cache.jobs.loop import Progress

T = TypeVar("T")
STEPS = 1000
"""Resolution of a request's progress: 1,000 steps are 100%."""
GRACE_S = 0.4  # how long a computation continues after the last page has left
_POLL_S = 0.1  # between checks whether a queued request is still wanted
_TRY_S = 0.01  # between attempts to lock the device against other processes

_local = threading.local()


class Place(Generic[T]):
    """The position in the queue of a request, created by `DeviceQueue.ask`. Pages with the same
    request share it; each must leave it when it closes."""

    def __init__(self, queue: DeviceQueue, reader: str = "") -> None:
        self._queue = queue
        self.reader = reader  # the reader who requested it first
        self._left_at = 0.0
        self._given_up = False
        self._waiting = 0
        self._result: Future[T] = Future()
        self.progress: Progress | None = None
        """Progress, in units of 1 / `STEPS`; None if unknown."""
        self.doing = ""
        """What the progress is of, if not of the whole pair."""
        self._reported_at = 0.0

    @property
    def ahead(self) -> int:
        """How many requests are served before this one; 0 while it is served or loads, and once it
        is done."""
        line = self._queue._line
        with self._queue._condition:
            return line.index(self) if self in line else 0

    def wait(self, seconds: float) -> bool:
        """Wait at most this many seconds; returns whether the result is available."""
        return bool(wait([self._result], seconds).done)

    def result(self) -> T:
        """The result, once it is available.

        Raises:
            Exception: the one that the computation raised.
        """
        return self._result.result()

    def leave(self) -> None:
        """Stop waiting; the computation ends when the last page leaves."""
        with self._queue._condition:
            self._waiting -= 1
            self._left_at = self._queue._clock()

    def report(self, share: float, doing: str, before: bool) -> None:
        """Report progress, from 0 to 1, of the pair, or of what is done first or in an attempt."""
        if self.progress is None or doing != self.doing:
            self.doing, self._reported_at = doing, self._queue._clock()
        done = round(STEPS * share)
        spent = self._queue._clock() - self._reported_at
        self.progress = Progress(STEPS, done, done, 0, spent)

    def wanted(self) -> bool:
        """Whether a page waits for the result, or waited less than `GRACE_S` ago, because a page
        that reruns leaves and asks again. Once False, it stays False."""
        with self._queue._condition:
            gone = not self._waiting and self._queue._clock() - self._left_at > GRACE_S
            self._given_up = self._given_up or gone
            return not self._given_up


class DeviceQueue:
    """The queue of one device. `limit` returns how many page requests it accepts, and `each` how
    many per reader. `clock` returns seconds. `shared` returns a file that processes with the same
    device lock in turn. The attribute `reader` returns the key of the current reader; by default
    readers are not distinguished."""

    def __init__(
        self,
        limit: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        each: Callable[[], int] = lambda: sys.maxsize,
        shared: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._shared = shared
        self._limit = limit
        self._each = each
        self.reader: Callable[[], str] = str
        self._clock = clock
        self._condition = threading.Condition()
        self._line: deque[object] = deque()
        self._requests: dict[Hashable, Place[Any]] = {}

    @contextmanager
    def device_slot(self) -> Iterator[None]:
        """Wait for the device, and reserve it while the context is open.

        Raises:
            Stopped: the work was stopped (`stoppable`).
        """
        ticket = getattr(_local, "request", None) or object()
        with self._condition:
            self._line.append(ticket)
            try:
                while self._line[0] is not ticket:
                    checkpoint()
                    self._condition.wait(_POLL_S)
            except BaseException:
                self._line.remove(ticket)
                self._condition.notify_all()
                raise
        try:
            with _among_processes(self._shared()):
                yield
        finally:
            with self._condition:
                self._line.popleft()
                self._condition.notify_all()

    def ask(self, key: Hashable, work: Callable[[], T]) -> Place[T]:
        """A position in the queue for the request with this key, which starts unless it is already
        active.

        `work` takes device slots itself.

        Raises:
            UserError: too many requests are waiting.
        """
        reader = self.reader()
        with self._condition:
            request = self._requests.get(key)
            if request is None or not request.wanted():
                waiting = [each for each in self._requests.values() if each.wanted()]
                if len(waiting) >= self._limit():
                    raise UserError(
                        f"{len(waiting)} requests are already waiting for this device. Try again "
                        "in a moment."
                    )
                n_own = sum(each.reader == reader for each in waiting)
                if reader and n_own >= self._each():
                    raise UserError(
                        f"{n_own} of your requests are already waiting. Try again in a moment."
                    )
                request = self._requests[key] = Place(self, reader)
                threading.Thread(
                    target=self._serve, args=(key, request, work), name="request", daemon=True
                ).start()
            request._waiting += 1
        return request

    def _serve(self, key: Hashable, request: Place[T], work: Callable[[], T]) -> None:
        _local.request = request
        try:
            with reporting(request.report), stoppable(lambda: not request.wanted()):
                finish = partial(request._result.set_result, work())
        except BaseException as error:
            finish = partial(request._result.set_exception, error)
        with self._condition:
            if self._requests.get(key) is request:
                del self._requests[key]
        finish()


@contextmanager
def _among_processes(file: Path | None) -> Iterator[None]:
    """Reserve the device among processes: all processes that use it lock `file`."""
    if file is None:
        yield
        return

    def cancel() -> bool:
        checkpoint()
        return False

    next_turn, device = FileLock(f"{file}.next"), FileLock(file)
    # No other process can write a read-only cache, so there is nobody to take turns with.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # The next process locks `next_turn` while it waits for the device, so that a run in another
        # process, which queues again after each batch, is not always first.
        next_turn.acquire(poll_interval=_TRY_S, cancel_check=cancel)
        try:
            device.acquire(poll_interval=_TRY_S, cancel_check=cancel)
        finally:
            next_turn.release()
    try:
        yield
    finally:
        device.release()


def ready(result: T) -> Place[T]:
    """A position whose result is available already."""
    place: Place[T] = Place(DeviceQueue(lambda: 0))
    place._result.set_result(result)
    return place
