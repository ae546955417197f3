"""Work in threads of its own: a device's queue, and runs that go on while pages come and go."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attribution.errors import UserError
from cache.precompute import Progress

RunKey = tuple[str, str, str, str, str]
Report = Callable[[Progress], None]


class Turnstile:
    """A lock that lets waiters through in the order they came. A run over a data set asks again
    after every batch; with a plain lock it would get it back each time before anyone waiting."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for one's turn and hold the device."""
        ticket = object()
        with self._condition:
            self._waiting.append(ticket)
            try:
                self._condition.wait_for(lambda: self._waiting[0] is ticket)
            except BaseException:
                self._waiting.remove(ticket)
                self._condition.notify_all()
                raise
        try:
            yield
        finally:
            with self._condition:
                self._waiting.popleft()
                self._condition.notify_all()


class Run:
    """A data set run in a thread of its own; it goes on while pages come and go."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.stage = ""
        self.progress = Progress(total=total, done=0, computed=0, failed=0, seconds=0.0)
        self.error = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether it is still computing."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to end after the batch at hand."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stop.is_set()

    def start(self, work: Callable[[Run], None]) -> None:
        """Run `work`; a UserError becomes `error`, anything else a sentence and a log entry."""

        def guarded() -> None:
            try:
                work(self)
            except UserError as error:
                self.error = str(error)
            except Exception:
                logging.getLogger(__name__).exception("run %s failed", self.label)
                self.error = "The run ended with an unexpected error; the server's log has it."

        self._thread = threading.Thread(target=guarded, name=self.label, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Block until it has ended."""
        if self._thread is not None:
            self._thread.join()
