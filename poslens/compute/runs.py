"""Jobs in background threads, which outlive the page that starts them."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from poslens.attribution.checkpoints import reporting, stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.retrievers.endpoint_cost import Cost
from poslens.cache.jobs.loop import Progress

if TYPE_CHECKING:
    from poslens.compute.costs import Counting

RunKey = tuple[str, str, str, str, str]
Report = Callable[[Progress], None]
Work = Callable[["Run", Report], Progress]

KEPT_RUNS = 256
"""Number of ended runs that are remembered, so that pages can show how they ended."""


class Run:
    """Runs a job in a background thread that outlives the page. `part` is the run that is active
    `within` it now, and stops with it. An `upkeep` run, such as a download, is restricted to some
    readers. `reader` is the key of the reader who started it, empty if readers are not
    distinguished."""

    def __init__(
        self,
        label: str,
        total: int,
        retry_failed: bool = False,
        *,
        upkeep: bool = False,
        within: Run | None = None,
    ) -> None:
        self.label = label
        self.retry_failed = retry_failed
        self.upkeep = upkeep
        self.within = within
        self.reader = ""
        self.stage = ""
        self.part: Run | None = None
        self.progress = Progress(total=total, done=0, computed=0, failed=0, seconds=0.0)
        self.error = ""
        self._stop = threading.Event()
        # Not Thread.is_alive(): Python 3.11 reports a thread as ended if a signal interrupted a
        # join.
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def counts(self) -> str:
        """Progress as text: what is being computed and how many items are done, including the
        current part."""
        progress, part = self.progress, self.part
        of = f"{progress.done:,} of {progress.total:,}" if progress.total else ""
        if part is None:
            return " · ".join(filter(None, (self.stage, of)))
        left = part.progress.remaining_seconds
        time_left = f"about {duration(left)} left" if left else ""
        return " · ".join(filter(None, (self.stage, part.counts, time_left)))

    @property
    def share(self) -> float:
        """Completed share in [0, 1], including the current part's progress."""
        progress, part = self.progress, self.part
        of_part = part.share if part is not None else 0.0
        return min(1.0, (progress.done + of_part) / progress.total) if progress.total else 0.0

    @property
    def active(self) -> bool:
        """Whether it is still computing."""
        return self._thread is not None and not self._ended.is_set()

    def stop(self) -> None:
        """Ask the run to end; stored results are not lost."""
        # In this order: otherwise the run would start the next part when the current one ends.
        self._stop.set()
        if (part := self.part) is not None:
            part.stop()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stop.is_set()

    def start(self, work: Callable[[Run], None]) -> None:
        """Run `work` in a thread. A UserError is stored in `error`; any other exception is logged
        and stored as a general sentence."""

        def guarded() -> None:
            try:
                with stoppable(self._stop.is_set):
                    work(self)
            except UserError as error:
                self.error = str(error)
            except BaseException:  # SystemExit too, so that only this run ends
                logging.getLogger(__name__).exception("run %s failed", self.label)
                self.error = (
                    "The run ended with an unexpected error. The server's log has the details."
                )
            finally:
                self._ended.set()

        self._thread = threading.Thread(target=guarded, name=self.label, daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the run ends, at most for these seconds; returns whether it has ended."""
        return self._thread is None or self._ended.wait(seconds)


class Runs:
    """The runs of this process: at most `limit()` active ones, at most `each()` per reader, and
    the latest `KEPT_RUNS` that ended. Each belongs to an owner, the folder that stores its results.
    The attribute `reader` returns the key of the current reader; by default readers are not
    distinguished."""

    def __init__(
        self, limit: Callable[[], int], each: Callable[[], int] = lambda: sys.maxsize
    ) -> None:
        self._limit = limit
        self._each = each
        self.reader: Callable[[], str] = str
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[Path, RunKey], Run] = OrderedDict()

    def start(self, job: Job, on_progress: Report, retry_failed: bool, within: Run | None) -> Run:
        """Start a job's run: see `Job.start`. A run `within` another one does not count toward the
        limit."""
        reader, key = within.reader if within is not None else self.reader(), (job.owner, job.key)
        with self._lock:
            running = self._runs.get(key)
            if running is not None and running.active:
                return running
            if within is None:
                self._require_place(reader)
            label = f"{job.label}: {job.doing}" if job.doing else job.label
            run = Run(label, job.total, retry_failed, upkeep=job.upkeep, within=within)
            run.reader = reader
            self._runs[key] = run
            self._runs.move_to_end(key)

            def report(progress: Progress) -> None:
                run.progress = progress
                on_progress(progress)

            def work_and_report(run: Run) -> None:
                report(job.work(run, report))

            run.start(work_and_report)
            self._drop_ended()
        return run

    def _require_place(self, reader: str) -> None:
        counted = [run for run in self._runs.values() if run.active and run.within is None]
        if len(counted) >= self._limit():
            raise UserError(
                f"Active runs: {len(counted)}, as many as PosLens allows: try again when one "
                "has ended, or stop one."
            )
        n_own = sum(run.reader == reader for run in counted)
        if reader and n_own >= self._each():
            raise UserError(
                f"Your active runs: {n_own}, as many as PosLens allows: try again when one has "
                "ended, or stop one."
            )

    def find(self, owner: Path, key: RunKey) -> Run | None:
        """The latest run with this owner and key; None if there is none."""
        return self._runs.get((owner, key))

    def active(self, owners: Collection[Path], *, upkeep: bool) -> list[Run]:
        """The active runs of these owners, except those started by another of their runs; upkeep
        runs are included only with `upkeep`."""
        with self._lock:
            runs = [run for (owner, _), run in self._runs.items() if run.active and owner in owners]
        return [run for run in runs if run.within not in runs and (upkeep or not run.upkeep)]

    def end(self, owner: Path) -> None:
        """Stop the owner's runs, wait for them to end, and remove them."""
        with self._lock:
            runs = {key: run for key, run in self._runs.items() if key[0] == owner}
        for run in runs.values():
            run.stop()
        for run in runs.values():
            run.wait()
        with self._lock:
            for key, run in runs.items():
                if self._runs.get(key) is run:
                    del self._runs[key]

    def active_at_all(self) -> bool:
        """Whether any run is active."""
        with self._lock:
            return any(run.active for run in self._runs.values())

    def stop_all(self, seconds: float) -> bool:
        """Stop every run and wait at most this many seconds; returns whether all ended."""
        with self._lock:
            runs = [run for run in self._runs.values() if run.active]
        for run in runs:
            run.stop()
        end = time.monotonic() + seconds
        return all(run.wait(max(0.0, end - time.monotonic())) for run in runs)

    def _drop_ended(self) -> None:
        ended = [key for key, run in self._runs.items() if not run.active]
        for key in ended[: max(0, len(self._runs) - KEPT_RUNS)]:
            del self._runs[key]


@dataclass(frozen=True)
class Sending:
    """The endpoint to which a job sends texts. `count` counts what jobs have left to send together,
    including what failed if its second argument is true; `again` creates the same job for another
    folder, with retrievers that count. Which texts an `adaptive` job sends depends on earlier
    answers, so it can't be counted exactly. `limit` says how much is sent if it can't be counted
    yet, and `estimated` returns the cost of the whole job if counting takes too long."""

    endpoint: str
    count: Callable[[Sequence[Job], bool], Cost | None]
    again: Callable[[Path, Counting], Job]
    adaptive: bool = False
    limit: str = "an unknown number of texts"
    estimated: Callable[[], Cost] | None = None


@dataclass(frozen=True)
class Job:
    """A computation that can run in the background: its name, its size and its work.

    `label` distinguishes it from other jobs of its kind, and `doing` names the kind where several
    are listed. `n_done` returns how many of the `total` items are stored or have failed, and
    `failures` returns the reasons by item. Without `counts_items`, `total` is not the number of
    items but, for example, of parts, each of which can have failed items. `n_elsewhere` counts
    the active runs in other processes of this host. Without `can_start` only stored results can
    be shown. `parts` and `upkeep` are those of `Run`. `sending` names the endpoint that
    receives texts; None without one. What is sent may depend on `first`, an incomplete job on
    this machine, which the work otherwise does itself.
    """

    runs: Runs
    owner: Path
    key: RunKey
    label: str
    total: int
    work: Work
    n_done: Callable[[], int] = int
    failures: Callable[[], Mapping[str, str]] = dict
    counts_items: bool = True
    n_elsewhere: Callable[[], int] = int
    can_start: bool = True
    parts: tuple[Job, ...] = ()
    doing: str = ""
    upkeep: bool = False
    sending: Sending | None = None
    first: Job | None = None

    @property
    def sends(self) -> bool:
        """Whether texts are sent to an endpoint."""
        return self.sending is not None or any(part.sends for part in self.parts)

    def endpoints(self, retry_failed: bool = False) -> tuple[str, ...]:
        """The endpoints that the remaining work, or a retry, sends texts to."""
        senders = self._senders(retry_failed)
        return tuple(dict.fromkeys(job.sending.endpoint for job in senders if job.sending))

    def quote(self, retry_failed: bool = False) -> str:
        """A sentence on how much remains to be sent, or a retry sends, to which endpoint; empty if
        nothing is sent."""
        names = ", ".join(self.endpoints(retry_failed))
        if not names:
            return ""
        cost = self.cost(retry_failed)
        if cost is not None and not cost.texts:
            if not cost.bound:  # all vectors are stored
                return ""
            cost = None
        unknown = Sending.limit if self.sending is None else self.sending.limit
        text = unknown if cost is None else cost.words
        what = self.label.removeprefix(names).lstrip(",: ")
        what = f" ({what})" if what else ""
        return f"PosLens will send {names}{what}: {text}."

    def cost(self, retry_failed: bool = False) -> Cost | None:
        """The texts and tokens that remain to be sent, including those of failed items with
        `retry_failed`, counted within some seconds. None if nothing is sent, or if the amount
        cannot be determined yet."""
        return cost_of(self._senders(retry_failed), retry_failed)

    def _senders(self, retry_failed: bool) -> list[Job]:
        """The parts, or this job if it has none, that remain and send texts."""
        if self.sending is not None:
            return [self]
        return [
            job
            for part in self.parts
            if part.sends and part.has_left(retry_failed)
            for job in part._senders(retry_failed)
        ]

    def has_left(self, retry_failed: bool = False) -> bool:
        """Whether anything is missing or, on a retry, has failed."""
        return self.n_done() < self.total or (retry_failed and bool(self.failures()))

    def start(
        self,
        on_progress: Report = lambda progress: None,
        *,
        retry_failed: bool = False,
        within: Run | None = None,
    ) -> Run:
        """Start a run that computes what is missing, as a part of `within` if given, and return it;
        if the job has an active run already, return that.

        Raises:
            UserError: the limit of active runs is reached.
        """
        return self.runs.start(self, on_progress, retry_failed, within)

    @property
    def run(self) -> Run | None:
        """The latest run in this process."""
        return self.runs.find(self.owner, self.key)

    @property
    def active(self) -> bool:
        """Whether it is being computed in this process."""
        run = self.run
        return run is not None and run.active

    @property
    def active_elsewhere(self) -> bool:
        """Whether another process of this host, and not this one, may be computing what is missing
        or failed. This is not certain, because `n_elsewhere` also counts runs over other items."""
        return not self.active and bool(self.n_elsewhere()) and self.has_left(retry_failed=True)

    @property
    def error(self) -> str:
        """The error that ended the latest run; empty without one, and while a run is active."""
        run = self.run
        return "" if run is None or run.active else run.error

    def stop(self) -> None:
        """Stop the job's run; stored results are not lost."""
        if (run := self.run) is not None:
            run.stop()


def cost_of(jobs: Sequence[Job], retry_failed: bool = False) -> Cost | None:
    """As `Job.cost`, for jobs without parts that run one after the other."""
    sending = jobs[0].sending if jobs else None
    return None if sending is None else sending.count(jobs, retry_failed)


def duration(seconds: float) -> str:
    """A duration as text: in seconds below 90 s, otherwise in minutes."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def failures_of(parts: Iterable[tuple[str, Job]]) -> dict[str, str]:
    """The failed items of several jobs, each given with its name, which is added to the ids."""
    return {
        f"{item} ({name})": reason for name, job in parts for item, reason in job.failures().items()
    }


def in_turn(jobs: Sequence[tuple[str, Job]]) -> Work:
    """Work that runs these jobs (each with its name) one after the other: those that are incomplete
    and, on a retry, those with failed items. Its progress counts jobs. Each job has its own run,
    with its own progress and error. When one job's run is stopped, the next job starts. An error
    ends a retry: failed items count as done, so nothing else would show that it is incomplete."""

    def work(run: Run, report: Report) -> Progress:
        todo = [(name, job) for name, job in jobs if job.has_left(run.retry_failed)]
        started = time.perf_counter()

        def progress(done: int, stopped: bool = False) -> Progress:
            return Progress(len(todo), done, done, 0, time.perf_counter() - started, stopped)

        for number, (name, job) in enumerate(todo):
            report(progress(number))
            if run.stopping:
                return progress(number, stopped=True)
            run.stage = name

            def show(_: Progress, number: int = number) -> None:
                report(progress(number))  # the whole run's share includes that of its part

            part_run = run.part = job.start(show, retry_failed=run.retry_failed, within=run)
            # The whole run may have been stopped before this part existed.
            if run.stopping:
                part_run.stop()
            part_run.wait()
            run.part = None
            if run.retry_failed and part_run.error:
                raise UserError(part_run.error)
            if run.stopping:
                done = number + (not job.has_left())
                return progress(done, stopped=done < len(todo))
        return progress(len(todo))

    return work


def interruptible(work: Work) -> Work:
    """The same work, which ends as stopped wherever it is stopped. The run's stage says what
    precedes its first item, such as counting a corpus's words, which can take minutes."""

    def ending(run: Run, report: Report) -> Progress:
        own_stage: str | None = None

        def show(share: float, doing: str, before: bool) -> None:
            nonlocal own_stage
            if not before:
                return
            if own_stage is None:
                own_stage = run.stage
            run.stage = f"{doing}, {share:.0%}"
            if share >= 1:
                run.stage, own_stage = own_stage, None
            report(run.progress)

        try:
            with reporting(show):
                return work(run, report)
        except Stopped:
            return replace(run.progress, stopped=True)
        finally:
            if own_stage is not None:
                run.stage = own_stage

    return ending
