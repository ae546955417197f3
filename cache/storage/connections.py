"""Connections to the store's databases: pooling, locking, and handling of removed databases.

SQLite serializes writers, but before 3.51.3 (3.50.7, 3.44.6) a checkpoint and a commit of another
connection can race so that the write-ahead log is reset too early and the database is corrupted
("WAL-reset bug", sqlite.org/wal.html). Python is often linked against an older version. Therefore
this module does its own checkpoints (`wal_autocheckpoint = 0`), and every process holds one lock
file per database during open, commit, checkpoint and close. Reading takes no lock.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from poslens.attribution.errors import UserError
from poslens.cache.storage.network_share import refuse_network_share

LOCKS = "locks"
VERSION = 3
APPLICATION = int.from_bytes(b"POSL", "big")

_TIMEOUT_S = 60
_POLL_S = 0.001
_CHECKPOINT_BYTES = 16 << 20
_IDLE_PER_FILE = 4
_MAX_IDLE = 16
"""Maximum number of idle connections to all files. Each keeps the database and its log open, and
each file the log's index: at most 48 descriptors. Each may also cache 2 MB of database pages."""

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE result (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, dataset TEXT NOT NULL, item TEXT NOT NULL,
    text TEXT NOT NULL, reason TEXT, payload BLOB, UNIQUE (kind, dataset, item));
CREATE INDEX failed ON result (kind) WHERE reason IS NOT NULL;
CREATE TABLE block (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, n INTEGER NOT NULL, checksum INTEGER NOT NULL,
    data BLOB NOT NULL);
CREATE INDEX named ON block (name);
CREATE TABLE ingested (part TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class Foreign(sqlite3.DatabaseError):
    """The database belongs to another program."""


# -- locks -----------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Hold the lock of the database at `path`: one thread of one process at a time; reentrant.
    `timeout` is in seconds, by default a minute.

    Raises:
        sqlite3.OperationalError: another process or thread holds it for longer than that.
    """
    # Outside the model's folder, which can be removed while its locks are held.
    place = path.parents[1] / LOCKS / path.parent.name / f"{path.stem}.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    # One object for each path while any thread holds it, so that the lock is reentrant.
    lock = FileLock(place, is_singleton=True)
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
    """A database that this process has open. If the file was unlinked, SQLite detects it: closing
    the last connection then does not touch the log at its path, which belongs to another database
    by now."""

    path: Path
    inode: tuple[int, int]
    idle: list[sqlite3.Connection] = field(default_factory=list)
    taken: int = 0
    written: int = 0
    stale: bool = False
    shared: int = 0
    """Size in bytes of the log's index, the -shm file, when this process last used it; it never
    shrinks while a process has it open."""


_guard = threading.RLock()
_files: OrderedDict[Path, _File] = OrderedDict()


@contextmanager
def connection(path: Path, create: bool) -> Iterator[sqlite3.Connection | None]:
    """An open connection from the pool; None if there is no database and `create` is False."""
    if not create and not (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)):
        with _frozen(path) as db:
            yield db
        return
    borrowed = _borrow(path, create)
    if borrowed is None:
        yield None
        return
    file, db = borrowed
    usable = True
    try:
        yield db
    except sqlite3.Error:
        usable = False
        raise
    finally:
        _give_back(file, db, usable)


def _borrow(path: Path, create: bool) -> tuple[_File, sqlite3.Connection] | None:
    inode = _inode(path)
    with _guard:
        file = _files.get(path)
        if file is not None and file.inode == inode and file.idle:
            file.taken += 1
            _files.move_to_end(path)
            _restore_index(file)
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
                file = _files[path] = _File(path, inode)
            file.taken += 1
            _files.move_to_end(path)
        return file, db


def _give_back(file: _File, db: sqlite3.Connection, usable: bool) -> None:
    crowded: list[_File] = []
    unwanted: sqlite3.Connection | None = None
    with _guard:
        file.taken -= 1
        _restore_index(file)
        file.shared = max(file.shared, _index_bytes(file))
        if usable and not file.stale and len(file.idle) < _IDLE_PER_FILE:
            file.idle.append(db)
        else:
            unwanted = db
        surplus = sum(max(1, len(each.idle)) for each in _files.values()) - _MAX_IDLE
        for each in _files.values():  # least recently used first
            if surplus <= 0:
                break
            if not each.taken:
                crowded.append(each)
                surplus -= max(1, len(each.idle))
    if unwanted is not None:
        with locked(file.path):
            unwanted.close()
    for each in crowded:
        _shut(each)


def retire(path: Path) -> None:
    """Close the file at `path`, which is about to be removed. Its lock must be held."""
    with _guard:
        if (file := _files.get(path)) is not None:
            _retire(file)


def release(folder: Path | None = None) -> None:
    """Close this process's idle connections to files below `folder`, or to all files."""
    with _guard:
        files = [
            file for path, file in _files.items() if folder is None or path.is_relative_to(folder)
        ]
    for file in files:
        _shut(file)


def _retire(file: _File) -> None:
    """Close a file that is no longer the one at its path, or soon won't be. Its lock and `_guard`
    must be held."""
    file.stale = True
    _files.pop(file.path, None)
    _restore_index(file)
    while file.idle:
        file.idle.pop().close()


def _shut(file: _File) -> None:
    """Close a file without users; the last process to close it checkpoints its log."""
    if _inode(file.path) is None:
        # Its folder was removed, and must not be recreated for a lock file.
        with _guard:
            _retire(file)
        return
    with suppress(OSError, sqlite3.Error), locked(file.path, timeout=1), _guard:
        if not (file.taken or file.stale):
            _retire(file)


def _index_bytes(file: _File) -> int:
    try:
        return file.path.with_name(file.path.name + "-shm").stat().st_size
    except OSError:
        return 0


def _restore_index(file: _File) -> None:
    """Restore the length of a truncated -shm file.

    SQLite has mapped it into memory, and reading beyond its end would kill the process with SIGBUS.
    The file is padded with zeros; if part of it was left, that is overwritten as well, so that
    SQLite rebuilds the index from the log, as after a crash. Done by path, because opening and
    closing the file would drop this process's locks on it.
    """
    place = file.path.with_name(file.path.name + "-shm")
    if 0 < file.shared > _index_bytes(file) and place.exists():
        with suppress(OSError):
            os.truncate(place, 0)
            os.truncate(place, file.shared)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


def _open(path: Path, mode: str, extra: str = "") -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}{extra}",
        uri=True,
        timeout=_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _connect(path: Path, create: bool) -> sqlite3.Connection | None:
    """Open a database under its lock. It may lack tables (see `create_schema`). None if it doesn't
    exist and `create` is False."""
    db = _open(path, "rwc" if create else "rw")
    try:
        if not _ours(db):
            if not create:
                db.close()
                return None
            db.execute("PRAGMA page_size = 65536")
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise sqlite3.OperationalError("no write-ahead log here")
        # FULL, not NORMAL: results reported as stored must survive a power failure. The cost is
        # negligible next to computing the batch (bench.store).
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        db.close()
        raise
    return db


def create_schema(db: sqlite3.Connection) -> bool:
    """Create the tables of an empty database within the caller's transaction, so that they are
    committed together with the first rows. False if the tables exist already."""
    if _ours(db):
        return False
    for statement in filter(str.strip, _SCHEMA.split(";")):
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('epoch', hex(randomblob(8)))")
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    return True


def _ours(db: sqlite3.Connection) -> bool:
    """Whether the database has the store's tables; False if it is empty."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION:
        if version > VERSION:
            raise UserError(
                "The cache can't be used, because a newer version of PosLens wrote it: update "
                "PosLens, or set POSLENS_HOME to another folder."
            )
        if version < VERSION:
            raise UserError(
                "The cache can't be used, because an older version of PosLens wrote it: export its "
                "results with that version's `cache export`, set POSLENS_HOME to another folder "
                "and import the file with `cache import`."
            )
        return True
    if application or version or db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise Foreign("file is not a database of PosLens")
    return False


@contextmanager
def _frozen(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A read-only connection, without locks, to a database that can't be written here."""
    log = path.with_name(path.name + "-wal")
    if log.is_file() and log.stat().st_size:
        raise UserError(
            "The cache can't be used, because its folder is read-only and its last changes are "
            "still in a log: open it once with write access."
        )
    db = _open(path, "ro", "&immutable=1")
    try:
        yield db if _ours(db) else None
    finally:
        db.close()


_inherited: list[object] = []


def _after_fork() -> None:
    # A child process must neither use nor close a connection that it inherited.
    global _guard
    _guard = threading.RLock()
    _inherited.append(dict(_files))
    _files.clear()


atexit.register(release)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def checkpoint(path: Path, db: sqlite3.Connection, written: int) -> None:
    """Checkpoint the log once enough was written. This counts written bytes, because the log's file
    doesn't shrink when it is reset."""
    with _guard:
        file = _files.get(path)
        if file is None:
            return
        file.written += written
        if file.written < _CHECKPOINT_BYTES:
            return
        file.written = 0
    # Committed data is safe in the log; if the disk is full, the next commit reports it.
    with suppress(sqlite3.Error):
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
