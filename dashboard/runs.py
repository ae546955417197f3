"""Work in threads of its own: runs that go on while pages come and go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from attribution.errors import UserError
from cache.precompute import Progress

RunKey = tuple[str, str, str, str, str]
Report = Callable[[Progress], None]


class Run:
    """A data set run in a thread of its own; it goes on while pages come and go."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.stage = ""
        self.progress = Progress(total=total, done=0, computed=0, failed=0, seconds=0.0)
        self.error = ""
        self._stop = threading.Event()
        # Not the thread's own word: Python 3.11 takes a thread for ended whose join a signal broke.
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def active(self) -> bool:
        """Whether it is still computing."""
        return self._thread is not None and not self._ended.is_set()

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
            finally:
                self._ended.set()

        self._thread = threading.Thread(target=guarded, name=self.label, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Block until it has ended."""
        if self._thread is not None:
            self._ended.wait()
