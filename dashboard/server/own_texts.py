"""Texts uploaded or typed by users: their results are private to the user and deleted with the
session.

A session belongs to one browser tab or, with a login, to one person with all open tabs. Results
contain every word of their texts. They are therefore stored in a folder of the session that only
the operating-system user running the program may read. The folder is removed when the session ends,
when the program ends, or at the next start after the program was killed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

import streamlit as st
from filelock import FileLock, Timeout

from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.text import sentences, words
from poslens.cache import lru_cache
from poslens.cache.storage import index
from poslens.cache.storage.files import CacheFolder, set_fallback
from poslens.compute.compute import Compute, service
from poslens.compute.settings import KEEP_OWN_TEXTS
from poslens.dashboard.server import people
from poslens.storage.service import Exports

GRACE_S = 120.0
"""Seconds that a session is kept without a browser: as long as Streamlit allows a reconnect."""

_PREFIX = "poslens-own-"
_LOCK = ".lock"
_KEY = "own texts"


class Session:
    """A user's private data: uploaded data sets by name, results for the user's own texts,
    exports."""

    def __init__(self, shared: Compute, folder: Path) -> None:
        self.folder = folder
        self.compute = Compute(folder, beside=shared)
        # Typed queries search data sets whose vectors everyone shares.
        set_fallback(self.compute.root, CacheFolder(shared.root))
        self.exports = Exports(folder / "exports")
        self.uploads: dict[str, DataSet] = {}
        self.ended = False
        self._lock = threading.Lock()
        self._tabs = 0
        self._timer: threading.Timer | None = None

    def leave(self) -> None:
        """Unregister a browser tab; after the last one, the session ends after a grace period."""
        with self._lock:
            self._tabs -= 1
            if self._tabs <= 0 and self._timer is None and not self.ended:
                self._timer = threading.Timer(GRACE_S, self.end)
                self._timer.daemon = True
                self._timer.start()

    def stay(self) -> None:
        """Register a browser tab, or its reconnection."""
        with self._lock:
            self._tabs += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def end(self) -> None:
        """Stop the session's runs and remove all its data."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        self.uploads.clear()
        for owner in (self.compute.root, self.exports.folder):
            self.compute.runs.end(owner)
        self.compute.store.release()
        set_fallback(self.compute.root, None)
        had_results = self.compute.root.exists()
        _remove(self.folder)
        if not had_results:
            return
        index.forget_below(self.compute.root)
        # In-memory curves, figures and words of all users, which are recomputed on demand.
        lru_cache.forget_made()
        words.cache_clear()
        sentences.cache_clear()


def service_for(dataset: str) -> Compute:
    """The service that stores results for texts of this data set: the shared cache for data sets
    given at startup; otherwise (uploads and `datasets.TYPED`) the session's own, unless
    `POSLENS_KEEP_OWN_TEXTS` is set.

    Raises:
        UserError: that setting has an invalid value.
    """
    if dataset in datasets.names() or KEEP_OWN_TEXTS.get() == "yes":
        return service()
    return session().compute


def private(dataset: str) -> bool:
    """Whether results for texts of this data set are deleted with the session."""
    return service_for(dataset) is not service()


def session() -> Session:
    """This user's session."""
    session = _begun()
    if session is None:
        with _of_people_lock:
            # Another tab of the same person may just have started it.
            session = _begun() or Session(service(), _new_folder())
            for other in [name for name, earlier in _of_people.items() if earlier.ended]:
                del _of_people[other]
            if person := people.person():
                _of_people[person] = session
            else:
                st.session_state[_KEY] = session
    _tied(session)
    return session


def _begun() -> Session | None:
    person = people.person()
    session: Session | None = _of_people.get(person) if person else st.session_state.get(_KEY)
    return None if session is None or session.ended else session


_of_people: dict[str, Session] = {}
_of_people_lock = threading.Lock()


def uploads() -> dict[str, DataSet]:
    """The data sets that this user has uploaded, by name."""
    session = _begun()
    if session is None:
        return {}
    _tied(session)
    return session.uploads


def owners() -> set[Path]:
    """The folders whose runs this user may see: the shared cache, and the session's own."""
    session = _begun()
    private = set() if session is None else {session.compute.root, session.exports.folder}
    return {service().root, *private}


@st.cache_resource(
    scope="session", show_spinner=False, on_release=lambda tied: tied.leave(), max_entries=1
)
def _tied(_session: Session) -> Session:
    """Called once per connection: Streamlit releases the value when the browser disconnects."""
    _session.stay()
    return _session


# -- folders ---------------------------------------------------------------------------------------

_numbers = count(1)


def _new_folder() -> Path:
    folder = _holder() / str(next(_numbers))
    folder.mkdir(mode=0o700)
    return folder


@cache
def _holder() -> Path:
    """This process's folder of sessions, locked while the process runs."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # readable only by this operating-system user
    lock = _lock_of(folder)
    lock.acquire()
    atexit.register(_close, folder, lock)
    return folder


def _lock_of(folder: Path) -> FileLock:
    # Held by the process, not by the session's thread that happens to acquire it.
    return FileLock(folder / _LOCK, thread_local=False)


def _close(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()


def _remove(folder: Path) -> None:
    """Remove a session's folder and leave an empty file in its place, so that work that finishes
    later can't store its result."""
    gone = folder.with_name(f"{folder.name}.gone")
    for _ in range(100):
        with suppress(OSError):
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        with suppress(OSError):
            os.close(os.open(folder, os.O_CREAT | os.O_EXCL, 0o600))
            return


def remove_left_over() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            owner = os.getuid() if hasattr(os, "getuid") else folder.stat().st_uid  # not on Windows
            if folder.is_symlink() or folder.stat().st_uid != owner:
                continue
            lock = _lock_of(folder)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            _close(folder, lock)
