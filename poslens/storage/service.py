"""Maintenance of stored results in background threads, with progress.

Pages refer to files by ids: the model's fingerprint and the file's name.
"""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.datasets import SAMPLE
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.isolated import Reader
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.exchange import transfer
from poslens.cache.exchange.incoming import UPLOAD, require_readable
from poslens.cache.jobs.claims import in_use
from poslens.cache.jobs.loop import Progress
from poslens.cache.lru_cache import LRUCache
from poslens.cache.shipped.manifest import ShippedFile, shipped_files
from poslens.cache.storage import maintenance
from poslens.cache.storage.files import Files
from poslens.cache.storage.maintenance import StoredFile
from poslens.compute.compute import Compute
from poslens.compute.runs import Job, Run
from poslens.compute.settings import SHIPPED
from poslens.export.files import file_name
from poslens.version import __version__

DOWNLOAD_MB = 200
UPLOAD_MB = 20
_MAX_EXPORTS = 3
_KEY = ("cache", "upkeep", "", "", "")
_EXPORT = ("cache", "export", "", "", "")
IMPORTING = "Importing"
"""The label of the run of `start_import`."""
Step = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """A file for download, available until newer exports replace it."""

    name: str
    path: Path
    bytes: int


def file_id(file: StoredFile) -> str:
    """The id of a stored file on pages."""
    return f"{file.model.fingerprint}/{file.path.stem}"


_listed: LRUCache[list[StoredFile]] = LRUCache(1)


def stored(compute: Compute) -> list[StoredFile]:
    """All stored files; a file is read again only if it has changed."""
    store = compute.store
    state: list[tuple[str, int, int]] = []
    with suppress(OSError):  # another process has just removed a folder
        for path in store.folder.rglob("*.db*") if store.folder.is_dir() else ():
            if path.name.endswith("-shm"):
                continue
            with suppress(OSError):  # or a file, such as SQLite's log
                stat = path.stat()
                state.append((str(path), stat.st_mtime_ns, stat.st_size))
    return _listed.get((store.root, *sorted(state)), lambda: maintenance.listing(store))


def shipped(compute: Compute) -> list[tuple[ShippedFile, str]]:
    """The files of included results, each with the reason why it is not used: other models or
    methods than the current ones; empty if it is used."""
    return [(file, _left_out(compute, file)) for file in shipped_files()]


def _left_out(compute: Compute, file: ShippedFile) -> str:
    if SHIPPED.get() == "no":
        return f"{SHIPPED.name}=no"
    names = {make_method(name).core: name for name in METHODS}
    name = file.method.partition("(")[0]
    if name in METHODS and file.method not in names:
        return "another version of the method"
    try:
        spec = with_corpus(resolve(file.model), next(iter(file.datasets), SAMPLE))
        same = compute.identify(spec).key.fingerprint == file.fingerprint
    except UserError as reason:
        return str(reason)
    return "" if same else "other weights or another data set"


def size(n: float) -> str:
    """A number of bytes as text, such as "1.5 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:,.0f} {unit}" if unit == "B" or n >= 100 else f"{n:,.1f} {unit}"
        n /= 1000
    raise AssertionError("unreachable")


def summary(files: Sequence[StoredFile], dataset: str = "") -> str:
    """A clause on the contents of files: models, numbers of results and failures, methods, and size
    or the data set that they are restricted to."""
    names = ", ".join(dict.fromkeys(file.model.name for file in files))
    methods = ", ".join(dict.fromkeys(file.method.core for file in files))
    if dataset:
        entries = counted(sum(file.datasets[dataset] for file in files), "result")
        return f"{names}: {entries} of {methods} on {dataset}, including failures"
    text = f"{names}: {counted(sum(file.results for file in files), 'result')}"
    if failed := sum(file.failed for file in files):
        text += f" and {counted(failed, 'failure')}"
    return f"{text} of {methods}, {size(sum(file.bytes for file in files))}"


def current(compute: Compute) -> Run | None:
    """The latest maintenance operation of this process; only one runs at a time."""
    return compute.runs.find(compute.root, _KEY)


def current_export(compute: Compute, exports: Exports) -> Run | None:
    """The latest export of the session to which `exports` belong."""
    return compute.runs.find(exports.folder, _EXPORT)


def _start(
    compute: Compute, doing: str, work: Callable[[Run, Step], str], exports: Exports | None = None
) -> Run:
    """Run `work` in a thread; the sentence that it returns becomes the run's stage. With `exports`
    the run belongs to their session, otherwise it is the process's maintenance operation."""

    def timed(run: Run, report: Callable[[Progress], None]) -> Progress:
        run.stage, started = doing, time.perf_counter()

        def step(done: int, total: int) -> None:
            report(Progress(total, done, done, 0, time.perf_counter() - started))

        text = work(run, step)
        run.stage = text
        return run.progress

    if exports is not None:
        return Job(compute.runs, exports.folder, _EXPORT, doing, 0, timed).start()
    return compute.job(_KEY, doing, 0, timed, upkeep=True).start()


def start_verify(compute: Compute, files: Sequence[StoredFile]) -> Run:
    """Start a run that verifies every result's checksum and removes damaged results."""

    def work(run: Run, step: Step) -> str:
        checked, damaged, total = 0, 0, sum(file.results + file.failed for file in files)
        for file in files:
            _require_wanted(run)
            _require_readable(file)
            before = checked

            def report(done: int, _: int, before: int = before) -> None:
                if run.stopping:
                    raise Stopped("Stopped. Results that were checked are intact or were removed.")
                step(before + done, max(total, before + done))

            verified = maintenance.verify(compute.store, file.model, file.method, report)
            checked, damaged = checked + verified.checked, damaged + len(verified.damaged)
        if damaged:
            return (
                f"{damaged:,} of {checked:,} entries were damaged and were removed: the next run "
                "computes them again."
            )
        return f"All {checked:,} entries, results and failures, are intact."

    return _start(compute, "Verifying", work)


def start_compact(compute: Compute, files: Sequence[StoredFile]) -> Run:
    """Start a run that frees the disk space of replaced and removed results."""

    def work(run: Run, step: Step) -> str:
        freed = 0
        for file in _each(files, run, step):
            _require_readable(file)
            freed += maintenance.compact(compute.store, file.model, file.method)
        return f"Compacting freed {size(max(freed, 0))}."

    return _start(compute, "Compacting", work)


def require_idle(store: Files, files: Sequence[StoredFile]) -> None:
    """Refuse to delete results of a model that a run uses: it doesn't compute again what was stored
    when it began, so the deleted results would be missing until the next run.

    Raises:
        UserError: a run uses one of the models.
    """
    for model in dict.fromkeys(file.model for file in files):
        if in_use(store.root, model.fingerprint):
            raise UserError(
                f"A run is using {model.name}: stop it, or wait until it ends, and then delete its "
                "results."
            )


def start_delete(compute: Compute, files: Sequence[StoredFile], dataset: str = "") -> Run:
    """Start a run that deletes stored files, including unreadable ones, or their results of one
    data set.

    Raises:
        UserError: a run uses one of the models.
    """
    require_idle(compute.store, files)

    def work(run: Run, step: Step) -> str:
        text = summary(files, dataset)
        freed = sum(
            maintenance.drop_results(compute.store, file, dataset)
            for file in _each(files, run, step)
        )
        return f"Deleted {text}; {size(freed)} freed."

    return _start(compute, "Deleting", work)


def start_export(
    compute: Compute, files: Sequence[StoredFile], datasets: Sequence[str], exports: Exports
) -> Run:
    """Start a run that exports the results that `files` have on these data sets to a Parquet file,
    for the session of `exports`; an empty name stands for embeddings and maps. Without names it
    exports all results."""

    def work(run: Run, step: Step) -> str:
        models, methods = {file.model.name for file in files}, {file.method.name for file in files}
        parts = [
            models.pop() if len(models) == 1 else "all-models",
            methods.pop() if len(methods) == 1 else "all-methods",
            *(datasets if len(datasets) == 1 else ()),
        ]
        path = exports.place()
        rows = transfer.export(
            compute.store,
            files,
            path,
            poslens=__version__,
            datasets=datasets,
            report=step,
        )
        exported = Exported(file_name(*parts, "results", fmt="parquet"), path, path.stat().st_size)
        exports.keep(exported)
        return f"Exported {rows:,} rows, {size(exported.bytes)}. Download the file below."

    return _start(compute, "Exporting", work, exports)


def start_import(compute: Compute, name: str, data: bytes) -> Run:
    """Start a run that imports an uploaded file, after a separate process has checked that it can
    be read."""

    def work(run: Run, step: Step) -> str:
        with Reader(UPLOAD) as reader:
            fits = require_readable(reader, data, name)
        taken = transfer.take_stream(
            compute.store,
            io.BytesIO(data),
            name,
            fits=fits,
            report=step,
        )
        return f"{name}: {taken.sentence()}"

    return _start(compute, IMPORTING, work)


def _require_wanted(run: Run) -> None:
    if run.stopping:
        raise Stopped("Stopped before all files were processed.")


def _each(files: Sequence[StoredFile], run: Run, step: Step) -> Iterator[StoredFile]:
    """Yield the files as long as the run is wanted, and report progress."""
    for done, file in enumerate(files):
        _require_wanted(run)
        step(done, len(files))
        yield file
    step(len(files), len(files))


def _require_readable(file: StoredFile) -> None:
    if file.problem:
        raise UserError(f"{file.problem} Delete it, or select other results.")


# -- files for download ----------------------------------------------------------------------------


class Exports:
    """The latest exports of one session, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._made = 0
        self._offered: OrderedDict[Path, Exported] = OrderedDict()

    def place(self) -> Path:
        """A new path for the next export."""
        with self._lock:
            self._made += 1
            self.folder.mkdir(mode=0o700, exist_ok=True)
            return self.folder / f"{self._made}.parquet"

    def keep(self, exported: Exported) -> None:
        """Offer an export for download; it replaces one of the same name, or the oldest."""
        with self._lock:
            for path, old in list(self._offered.items()):
                if old.name == exported.name:
                    del self._offered[path]
                    path.unlink(missing_ok=True)
            self._offered[exported.path] = exported
            while len(self._offered) > _MAX_EXPORTS:
                path, _ = self._offered.popitem(last=False)
                path.unlink(missing_ok=True)

    def offered(self) -> list[Exported]:
        """Exports that can be downloaded, latest first."""
        with self._lock:
            return list(reversed(self._offered.values()))
