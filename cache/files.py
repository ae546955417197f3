"""The store's files: one SQLite database for each model fingerprint and method core, opened,
locked, checkpointed and closed in one place.

SQLite keeps writers apart by itself, but before 3.51.3 (3.50.7, 3.44.6) a checkpoint and another
connection's commit can meet such that the write-ahead log is reset too early and the database is
damaged ("WAL-reset bug", sqlite.org/wal.html). Python often links an older one. So checkpoints
are ours (`wal_autocheckpoint = 0`), and one lock file for each database is held around open,
commit, checkpoint and close, in every process. Reading takes no lock.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from attribution.errors import UserError
from attribution.types import Method
from cache.shares import refuse_network_share

LAYOUT = "v2"
LOCKS = "locks"
VERSION = 2
APPLICATION = int.from_bytes(b"POSL", "big")

_TIMEOUT_S = 60
_POLL_S = 0.001
_CHECKPOINT_BYTES = 16 << 20
_IDLE_PER_FILE = 4
_IDLE_FILES = 32
_TOUCH_S = 3600

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE dataset (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE variant (id INTEGER PRIMARY KEY, params TEXT NOT NULL UNIQUE);
CREATE TABLE payload (
    id INTEGER PRIMARY KEY, ds INTEGER NOT NULL, pair TEXT NOT NULL, text INTEGER NOT NULL,
    reason TEXT, data BLOB, UNIQUE (ds, pair));
CREATE TABLE block (
    id INTEGER PRIMARY KEY, first INTEGER NOT NULL, n INTEGER NOT NULL, next INTEGER NOT NULL,
    checksum INTEGER NOT NULL, dead BLOB NOT NULL, data BLOB NOT NULL);
CREATE TABLE curve (
    id INTEGER PRIMARY KEY, variant INTEGER NOT NULL, n INTEGER NOT NULL,
    checksum INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE ingested (part TEXT PRIMARY KEY) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A model as the store knows it; the name is for people, the fingerprint is the key.

    `about` is JSON of where the model came from and how it is used, or empty: files keep it, so
    that results can be opened and captioned where the model itself is not.
    """

    name: str
    fingerprint: str
    about: str = field(default="", compare=False, repr=False)


class Foreign(sqlite3.DatabaseError):
    """A database of another program."""


class Files:
    """The databases below one folder. Any number of threads and processes of one host may use the
    same folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def folder(self) -> Path:
        """Where the models' folders are."""
        return self.root / LAYOUT

    def path(self, model: ModelKey, method: Method) -> Path:
        """The file of a model and a method's core."""
        core = hashlib.sha256(method.core.encode()).hexdigest()[:16]
        return self.folder / model.fingerprint / f"{method.name}-{core}.db"

    @contextmanager
    def reading(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection | None]:
        """The file as it is now, inside one read transaction; None where there is none yet.

        Raises:
            UserError: it cannot be read.
        """
        with open_for_reading(self.path(model, method)) as db:
            yield db

    @contextmanager
    def writing(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection]:
        """The file, inside a transaction that is committed at the end and on disk when this
        returns, or rolled back on any exception. One writer at a time.

        Raises:
            UserError: it cannot be written (rights, a full disk, a network share).
        """
        with open_for_writing(self.path(model, method)) as db:
            known = {key for (key,) in db.execute("SELECT key FROM meta WHERE key IN "
                                                  "('core', 'about')")}  # fmt: skip
            if "core" not in known:
                db.executemany("INSERT INTO meta VALUES (?, ?)", describe(model, method).items())
            if model.about and "about" not in known:
                db.execute("INSERT INTO meta VALUES ('about', ?)", (model.about,))
            yield db

    def release(self) -> None:
        """Close this process's idle connections to files of this folder."""
        with _guard:
            own = [file for path, file in _files.items() if path.is_relative_to(self.root)]
        for file in own:
            _shut(file)


def describe(model: ModelKey, method: Method) -> dict[str, str]:
    """What a file says of itself, so that it can be listed without the model being here."""
    import json

    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "core": method.core,
        "method": json.dumps([method.name, dict(method.params)]),
        "epoch": os.urandom(8).hex(),
    }


@contextmanager
def open_for_reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A read transaction on the database at `path`; None where there is nothing yet."""
    with explained(path):
        stat = path.stat() if path.is_file() else None
        if stat is None or stat.st_size == 0:
            yield None
            return
        with _borrowed(path, create=False) as db:
            if db is None:
                yield None
                return
            if time.time() - stat.st_atime > _TOUCH_S:
                # "Last use" of the cache page: the access time, which mounts often don't keep.
                with suppress(OSError):
                    os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")


@contextmanager
def open_for_writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A write transaction on the database at `path`, which is made where it is missing."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock is held from before the file is opened until after its checkpoint: the file at
        # this path cannot be unlinked or checkpointed by another process in between.
        with locked(path), _borrowed(path, create=True) as db:
            assert db is not None
            db.execute("BEGIN IMMEDIATE")
            try:
                pages = _pages(db)
                yield db
                written = (_pages(db) - pages + 4) * _page_size(db)
            except BaseException:
                # SQLite itself rolls back where the disk is full or fails.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
            _checkpoint(path, db, written)


def _pages(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA page_count").fetchone()[0]


def _page_size(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA page_size").fetchone()[0]


def _checkpoint(path: Path, db: sqlite3.Connection, written: int) -> None:
    """Move the log into the database once enough was written: by bytes written, since the log's
    file does not shrink when it starts over."""
    with _guard:
        file = _files.get(path)
        if file is None:
            return
        file.written += written
        if file.written < _CHECKPOINT_BYTES:
            return
        file.written = 0
    # What was committed is safe in the log; a disk that is full now says so at the next commit.
    with suppress(sqlite3.Error):
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


# -- locks -----------------------------------------------------------------------------------------

_locks: dict[Path, FileLock] = {}


@contextmanager
def locked(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Hold the lock of the database at `path`: one thread of one process at a time, which may
    take it again.

    Raises:
        UserError: another process holds it for longer than a minute.
    """
    # Outside the model's folder: a folder can be removed while its locks are held.
    place = path.parents[1] / LOCKS / path.parent.name / f"{path.stem}.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    with _guard:
        lock = _locks.setdefault(place, FileLock(place))
    try:
        lock.acquire(timeout=_TIMEOUT_S if timeout is None else timeout, poll_interval=_POLL_S)
    except Timeout as error:
        raise sqlite3.OperationalError("database is locked") from error
    try:
        yield
    finally:
        lock.release()


# -- connections -----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _File:
    """A database that this process has open.

    `anchor` is a read-only connection that stays open as long as any other. It keeps a closing
    connection from being the last one: the last one deletes the log BY NAME, and after the file
    was dropped and made anew that name is another database's log.
    """

    path: Path
    inode: tuple[int, int]
    anchor: sqlite3.Connection
    idle: list[sqlite3.Connection] = field(default_factory=list)
    taken: int = 0
    written: int = 0
    stale: bool = False


_guard = threading.RLock()
_files: OrderedDict[Path, _File] = OrderedDict()


@contextmanager
def _borrowed(path: Path, create: bool) -> Iterator[sqlite3.Connection | None]:
    if not create and not (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)):
        with _frozen(path) as db:
            yield db
        return
    found = _borrow(path, create)
    if found is None:
        yield None
        return
    file, db = found
    try:
        yield db
    except sqlite3.Error:
        _give_back(file, db, usable=False)
        raise
    except BaseException:
        _give_back(file, db)
        raise
    _give_back(file, db)


def _borrow(path: Path, create: bool) -> tuple[_File, sqlite3.Connection] | None:
    inode = _inode(path)
    with _guard:
        file = _files.get(path)
        if file is not None and file.inode == inode and file.idle:
            file.taken += 1
            _files.move_to_end(path)
            return file, file.idle.pop()
    with locked(path):
        if _inode(path) is None and not create:
            return None
        refuse_network_share(path.parent)
        db = _connect(path, create)
        if db is None:
            return None
        inode = _inode(path)
        assert inode is not None
        with _guard:
            file = _files.get(path)
            if file is not None and file.inode != inode:
                _retire(file)
                file = None
            if file is None:
                anchor = _open(path, "ro")
                anchor.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens it in earnest
                file = _files[path] = _File(path, inode, anchor)
            file.taken += 1
            _files.move_to_end(path)
        return file, db


def _give_back(file: _File, db: sqlite3.Connection, usable: bool = True) -> None:
    crowded: _File | None = None
    with _guard:
        file.taken -= 1
        if usable and not file.stale and len(file.idle) < _IDLE_PER_FILE:
            file.idle.append(db)
        else:
            db.close()
            if file.stale and not file.taken:
                file.anchor.close()
        if len(_files) > _IDLE_FILES:
            crowded = next((each for each in _files.values() if not each.taken), None)
    if crowded is not None:
        _shut(crowded)


def _retire(file: _File) -> None:
    """Let go of a file that is no longer the one at its path; `_guard` is held."""
    file.stale = True
    _files.pop(file.path, None)
    while file.idle:
        file.idle.pop().close()
    if not file.taken:
        file.anchor.close()


def _shut(file: _File) -> None:
    """Close a file that nobody uses; the last of all processes moves its log into the database."""
    with suppress(OSError, sqlite3.Error), locked(file.path, timeout=1), _guard:
        if file.taken or file.stale:
            return
        if file.inode != _inode(file.path) or not file.idle:
            _retire(file)
            return
        del _files[file.path]
        *others, last = file.idle
        for each in (*others, file.anchor, last):
            each.close()
        file.idle.clear()


def unlink(path: Path) -> None:
    """Remove a database. Whoever has it open finds another inode, or none, at its next write."""
    with explained(path), locked(path):
        with _guard:
            if (file := _files.get(path)) is not None:
                _retire(file)
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def vacuum(path: Path) -> None:
    """Write the database anew without its free space. Needs room for a second copy."""
    with explained(path), locked(path), _borrowed(path, create=False) as db:
        if db is not None:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def _open(path: Path, mode: str, extra: str = "") -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}{extra}", uri=True, timeout=_TIMEOUT_S,
        isolation_level=None, check_same_thread=False,
    )  # fmt: skip


def _connect(path: Path, create: bool) -> sqlite3.Connection | None:
    """Open a database, or fill one that is empty; the lock is held."""
    db = _open(path, "rwc" if create else "rw")
    try:
        if not _ours(db):
            if not create:
                db.close()
                return None
            db.execute("PRAGMA page_size = 65536")
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise sqlite3.OperationalError("no write-ahead log here")
            db.execute("BEGIN IMMEDIATE")
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        # FULL, not NORMAL: what was told to be stored survives a power cut too. Beside computing
        # the batch it does not show (bench.store).
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        db.close()
        raise
    return db


def _ours(db: sqlite3.Connection) -> bool:
    """Whether the database has our tables; False of an empty one."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION:
        if version > VERSION:
            raise UserError(
                "The cache could not be used, since a newer PosLens wrote it: update PosLens, or "
                "set POSLENS_HOME to another folder."
            )
        return True
    if application or version or db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise Foreign("file is not a database of PosLens")
    return False


@contextmanager
def _frozen(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A database that cannot be written here, read without locks."""
    log = path.with_name(path.name + "-wal")
    if log.is_file() and log.stat().st_size:
        raise UserError(
            "The cache could not be used, since its folder cannot be written and its last changes "
            "are still in a log: open it once where it can be written."
        )
    db = _open(path, "ro", "&immutable=1")
    try:
        yield db if _ours(db) else None
    finally:
        db.close()


def _close_all() -> None:
    with _guard:
        rest = list(_files.values())
    for file in rest:
        _shut(file)


_inherited: list[object] = []


def _after_fork() -> None:
    # A connection must not be used, nor closed, by a child that inherited it.
    global _guard
    _guard = threading.RLock()
    _inherited.append((dict(_files), dict(_locks)))
    _files.clear()
    _locks.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what a disk can do wrong into one sentence."""
    try:
        yield
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        text = str(error).lower()
        number = getattr(error, "errno", None)
        if "full" in text or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = "the disk is full: free some space"
        elif "disk i/o" in text or number == errno.EIO:
            reason = "the disk reports an error: check it, or set POSLENS_HOME to another one"
        elif isinstance(error, UnicodeDecodeError) or (
            isinstance(error, sqlite3.DatabaseError)
            and ("not a database" in text or "malformed" in text)
        ):
            reason = f"{path.name} is damaged or not a cache file: move it away"
        elif "locked" in text:
            reason = "another process holds it: wait for that to finish"
        else:
            reason = "it cannot be read or written: check its rights, or set POSLENS_HOME"
        raise UserError(f"The cache could not be used, since {reason}.") from error
