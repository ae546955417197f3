"""Claims on items, so that several jobs on one host share the work without duplicating it.

While it runs, a job holds a lock file and writes a file for each portion of items that it has
claimed but not released: a job that feeds many devices holds claims on thousands of items, too many
to rewrite with every batch. The lock is the operating system's (flock): it is released when the
process ends for any reason, so the claims of a killed job are free at once, without timeouts. A job
claims an item before it checks whether the item is stored, and other jobs store before they
release, so no item is computed twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from poslens.attribution.errors import UserError
from poslens.attribution.types import Method
from poslens.cache.keys import method_fingerprint
from poslens.cache.storage.files import ModelKey

_TIMEOUT_S = 60
_TOKEN = uuid.uuid4().hex[:8]


class Claims:
    """One job's claims on keys within `folder`, which all jobs of a kind share. A context manager
    that releases all claims on exit. Safe for any number of threads and processes of one host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = FileLock(folder / "claims.lock", timeout=_TIMEOUT_S)
        self._name = f"{_process()}-{uuid.uuid4().hex}"
        # With a timeout: a process that tests whether the lock is held acquires it for an instant.
        self._alive = FileLock(folder / f"{self._name}.alive", timeout=_TIMEOUT_S)
        self._portions: dict[str, set[str]] = {}
        self._place: dict[str, str] = {}
        """The file that records each claimed key."""
        self._taken = 0
        self._joined = 0
        self.contended = False
        """Whether another job ran since this one began, as of the last `take`. If so, items that
        were missing before may be stored by now."""

    def __enter__(self) -> Claims:
        with _explained(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._mutex:
                self._alive.acquire()
                self._joined = self._jobs() + 1
                self._replace("jobs", str(self._joined))
                self.contended = bool(list(self._others()))
        return self

    def __exit__(self, *_: object) -> None:
        with _explained(self._folder), self._mutex:
            self._alive.release()
            self._remove(self._name)

    def take(self, keys: Sequence[str]) -> set[str]:
        """Claim those of `keys` that no other running job has claimed, and return them.

        Raises:
            UserError: the folder can't be written.
        """
        with _explained(self._folder), self._mutex:
            held: set[str] = set()
            for claimed in self._others():
                self.contended = True
                held |= claimed
            # A job that started and ended in between is no longer listed among the running ones.
            self.contended |= self._jobs() != self._joined
            free = set(keys) - held
            if fresh := free - self._place.keys():
                self._taken += 1
                name = f"{self._name}.{self._taken}.json"
                self._portions[name] = fresh
                self._place |= dict.fromkeys(fresh, name)
                self._write(name)
        return free

    def release(self, keys: Iterable[str]) -> None:
        """Release claims on `keys`, which are stored or will not be computed."""
        touched: set[str] = set()
        for key in keys:
            if (name := self._place.pop(key, None)) is not None:
                self._portions[name].discard(key)
                touched.add(name)
        with _explained(self._folder):
            for name in touched:
                if self._portions[name]:
                    self._write(name)
                else:
                    del self._portions[name]
                    (self._folder / name).unlink(missing_ok=True)

    def _others(self) -> Iterator[set[str]]:
        """Yield the claims of each other running job and remove the files of dead jobs. The mutex
        must be held."""
        for path in list(self._folder.glob("*.alive")):
            if path.stem == self._name:
                continue
            if not _is_held(path):
                self._remove(path.stem)
                continue
            held: set[str] = set()
            for portion in self._folder.glob(f"{path.stem}.*.json"):
                with suppress(FileNotFoundError):  # released in the meantime
                    held |= set(json.loads(portion.read_text()))
            yield held

    def _jobs(self) -> int:
        path = self._folder / "jobs"
        return int(path.read_text()) if path.exists() else 0

    def _write(self, name: str) -> None:
        self._replace(name, json.dumps(sorted(self._portions[name])))

    def _replace(self, name: str, text: str) -> None:
        # Written atomically, because other jobs read it concurrently.
        part = self._folder / f"{self._name}.part"
        part.write_text(text)
        part.replace(self._folder / name)

    def _remove(self, name: str) -> None:
        for path in self._folder.glob(f"{name}.*"):
            path.unlink(missing_ok=True)


def claims_folder(root: Path, model: ModelKey, method: Method, kind: str = "") -> Path:
    """The folder in which runs on a model and a method's core record their claims, for results
    below `root`. Runs on results of a `kind` are separate from attribution runs by the same method,
    which pages count."""
    name = f"{model.fingerprint}-{method_fingerprint(method)}"
    if kind:
        name += f"-{hashlib.sha256(kind.encode()).hexdigest()[:16]}"
    return root / "claims" / name


def at_work(folder: Path, *, elsewhere: bool = False) -> int:
    """The number of running jobs, of this process and others, or only of others (`elsewhere`), with
    claims in `folder`; writes nothing."""
    active = 0
    for path in folder.glob("*.alive"):
        if elsewhere and path.name.startswith(f"{_process()}-"):
            continue
        with suppress(OSError):
            active += _is_held(path)
    return active


def using(root: Path, fingerprint: str) -> Claims:
    """A context in which a run uses the model with this fingerprint: it reads and adds results
    below `root`, of whatever kind, and relies on those it has read (`in_use`)."""
    return Claims(root / "claims" / fingerprint)


def in_use(root: Path, fingerprint: str) -> bool:
    """Whether a run, of this process or another, uses the model or claims items of it."""
    return any(at_work(folder) for folder in (root / "claims").glob(f"{fingerprint}*"))


def _process() -> str:
    """This process: two containers can have a process of the same number, and a fork has the same
    token."""
    return f"{_TOKEN}-{os.getpid()}"


def _is_held(path: Path) -> bool:
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except Timeout as error:
        raise UserError(
            f"The claims in {folder.name} are locked by a process that is stuck: end that process "
            "and start again."
        ) from error
    except OSError as error:
        raise UserError(
            f"The cache can't be used ({os.strerror(error.errno or 0)}): check the permissions, "
            "free space and the file system of its folder, or set POSLENS_HOME to another folder."
        ) from error
