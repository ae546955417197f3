"""The store's files: one SQLite database for each model fingerprint and method core, read and
written in transactions. Disk errors become UserErrors of one sentence."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, TypeVar

from poslens.attribution.errors import UserError
from poslens.attribution.types import Method
from poslens.cache.keys import method_fingerprint
from poslens.cache.storage.connections import (
    checkpoint,
    connection,
    create_schema,
    locked,
    release,
    retire,
)

LAYOUT = "v3"
_TOUCH_S = 3600
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A model's identity in the store: the fingerprint is the key, the name is for display.

    `about` is JSON that describes where the model came from and how it is used, or empty. It is
    stored in files, so that results can be opened and captioned where the model isn't installed.
    """

    name: str
    fingerprint: str
    about: str = field(default="", compare=False, repr=False)


class Layer(Protocol):
    """A fallback for the results of a folder: read where the folder has none of its own."""

    def folder(self, model: ModelKey, method: Method) -> Path | None:
        """The folder of their databases, with the store's layout; None if there are none."""
        ...

    def refuse(self, model: ModelKey, method: Method, reason: UserError) -> None:
        """Report once that these results can't be read, and ignore them from now on."""
        ...


class CacheFolder:
    """The results of another cache folder as a fallback."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, model: ModelKey, method: Method) -> Path:
        """The other folder, for all results."""
        return self._root

    def refuse(self, model: ModelKey, method: Method, reason: UserError) -> None:
        """Results that cannot be read count as missing."""


_layers: dict[Path, Layer] = {}

_TICK_NS = 50_000_000
"""Two writes that are further apart have different modification times, in nanoseconds."""


def set_fallback(root: Path, layer: Layer | None) -> None:
    """Read results that `root` lacks from `layer`; None removes the fallback. Code that changes,
    lists or exports the folder ignores it."""
    if layer is None:
        _layers.pop(root.absolute(), None)
    else:
        _layers[root.absolute()] = layer


class Files:
    """The databases below one folder. Any number of threads and processes of one host may use the
    same folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def read_fallback(self, model: ModelKey, method: Method, ask: Callable[[Self], T]) -> T | None:
        """What `ask` returns for the fallback of this folder; None without a readable fallback."""
        layer = _layers.get(self.root)
        folder = layer.folder(model, method) if layer else None
        if layer is None or folder is None:
            return None
        try:
            return ask(type(self)(folder))
        except UserError as reason:
            layer.refuse(model, method, reason)
            return None

    @property
    def folder(self) -> Path:
        """The parent of the models' folders."""
        return self.root / LAYOUT

    def path(self, model: ModelKey, method: Method) -> Path:
        """The path of the database of a model and a method's core."""
        name = f"{method.name}-{method_fingerprint(method)}.db"
        return self.folder / model.fingerprint / name

    def stamp(self, model: ModelKey, method: Method) -> tuple[tuple[int, int], ...]:
        """Sizes and modification times of the file and its write-ahead log, here and in the
        fallback; equal to an earlier stamp only if nothing was written in between."""
        path, now = self.path(model, method), time.time_ns()
        stamps = []
        for part in (path, path.with_name(path.name + "-wal")):
            with suppress(OSError):
                about = part.stat()
                if about.st_size == 0:  # a log that readers created
                    continue
                stamps.append((about.st_size, about.st_mtime_ns))
                # The next write may have the same time, and need not make the file larger.
                if abs(now - about.st_mtime_ns) < _TICK_NS:
                    stamps.append((now, 0))
        fallback = self.read_fallback(model, method, lambda files: files.stamp(model, method))
        return (*stamps, *(fallback or ()))

    @contextmanager
    def reading(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection | None]:
        """Open the file in one read transaction; None if it doesn't exist.

        Raises:
            UserError: it can't be read.
        """
        with open_for_reading(self.path(model, method)) as db:
            yield db

    @contextmanager
    def writing(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection]:
        """Open the file in a write transaction, which is committed to disk on exit, or rolled back
        on any exception. One writer at a time.

        Raises:
            UserError: it can't be written (permissions, a full disk, a network share).
        """
        with open_for_writing(self.path(model, method)) as db:
            assert db is not None
            present = {
                key for (key,) in db.execute("SELECT key FROM meta WHERE key IN ('core', 'about')")
            }
            if "core" not in present:
                db.executemany("INSERT INTO meta VALUES (?, ?)", describe(model, method).items())
            if model.about and "about" not in present:
                db.execute("INSERT INTO meta VALUES ('about', ?)", (model.about,))
            yield db

    @contextmanager
    def changing(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection | None]:
        """Like `writing`, but for an existing file: None if it doesn't exist, so that a file that
        was just deleted isn't recreated."""
        with open_for_writing(self.path(model, method), create=False) as db:
            yield db

    def release(self) -> None:
        """Close this process's idle connections to files of this folder."""
        release(self.root)


def describe(model: ModelKey, method: Method) -> dict[str, str]:
    """A file's description of its model and method, so that it can be listed without the model."""
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "core": method.core,
        "method": json.dumps([method.name, dict(method.params)]),
    }


@contextmanager
def open_for_reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A read transaction on the database at `path`; None if it doesn't exist or is empty."""
    with explained(path):
        stat = path.stat() if path.is_file() else None
        if stat is None or stat.st_size == 0:
            yield None
            return
        with connection(path, create=False) as db:
            if db is None:
                yield None
                return
            if time.time() - stat.st_atime > _TOUCH_S:
                # For "last use" on the Storage page: the access time, which many mounts don't
                # update.
                with suppress(OSError):
                    os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")


@contextmanager
def open_for_writing(path: Path, create: bool = True) -> Iterator[sqlite3.Connection | None]:
    """A write transaction on the database at `path`. With `create`, a missing database is created
    atomically; without it, the result is None if there is no database."""
    with explained(path):
        if not create and not path.is_file():
            yield None
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is held from before the file is opened until after its checkpoint, so that no
        # other process can unlink or checkpoint the file at this path in between.
        with locked(path), connection(path, create=create) as db:
            if db is None:
                yield None
                return
            db.execute("BEGIN IMMEDIATE")
            fresh = False
            try:
                fresh = create_schema(db)
                pages = _pragma(db, "page_count")
                yield db
                written = (_pragma(db, "page_count") - pages + 4) * _pragma(db, "page_size")
                db.execute("COMMIT")
            except BaseException:
                # SQLite rolls back by itself if the disk is full or fails.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if fresh:
                    with suppress(OSError):
                        _remove(path)
                raise
            checkpoint(path, db, written)


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def unlink(path: Path) -> None:
    """Remove a database. Processes that have it open notice at their next write that the file was
    replaced or removed."""
    with explained(path), locked(path):
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a database whose lock is held."""
    retire(path)
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def vacuum(path: Path) -> None:
    """Rewrite the database without its free space. Needs disk space for a second copy."""
    with explained(path), locked(path), connection(path, create=False) as db:
        if db is not None:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return 1 << 62


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn disk errors into a UserError of one sentence."""
    try:
        yield
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        text = str(error).lower()
        number = getattr(error, "errno", None)
        if (
            "full" in text
            or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            # SQLite reports "disk I/O error" if there is no space for the log's index.
            or ("disk i/o" in text and _free_bytes(path) < 1 << 20)
        ):
            reason = "the disk is full: free some space"
        elif "disk i/o" in text or number == errno.EIO:
            reason = "the disk reports an error: check it, or set POSLENS_HOME to another one"
        elif isinstance(error, UnicodeDecodeError) or (
            isinstance(error, sqlite3.DatabaseError)
            and ("not a database" in text or "malformed" in text)
        ):
            reason = f"{path.name} is damaged or not a cache file: move it away"
        elif "locked" in text:
            reason = "another process has locked it: wait until it finishes"
        else:
            reason = "it can't be read or written: check its permissions, or set POSLENS_HOME"
        raise UserError(f"The cache can't be used, because {reason}.") from error
