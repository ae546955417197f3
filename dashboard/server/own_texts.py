"""Texts that readers bring along, uploaded or typed: what is computed of them stays with the
reader and ends with the session.

A reader is one browser tab, or, where people log in, one person with all tabs that are open.
Results hold every word of their texts. So they are kept in a folder of the session's own, which
only the program's user may read and which is removed when the session ends, when the program ends,
or when it is started again after it was killed.
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
from poslens.compute.compute import Compute, service
from poslens.compute.settings import KEEP_OWN_TEXTS
from poslens.dashboard.server import people
from poslens.storage.service import Exports

GRACE_S = 120.0
"""How long a session lives on without its browser: as long as Streamlit lets it come back."""

_PREFIX = "poslens-own-"
_LOCK = ".lock"
_KEY = "own texts"


class Session:
    """What a reader keeps to itself: uploaded data sets by name, results of own texts, exports."""

    def __init__(self, shared: Compute, folder: Path) -> None:
        self.folder = folder
        self.compute = Compute(folder, beside=shared)
        self.exports = Exports(folder / "exports")
        self.uploads: dict[str, DataSet] = {}
        self.ended = False
        self._lock = threading.Lock()
        self._tabs = 0
        self._timer: threading.Timer | None = None

    def leave(self) -> None:
        """A browser tab is gone; after the last one it may come back for a while."""
        with self._lock:
            self._tabs -= 1
            if self._tabs <= 0 and self._timer is None and not self.ended:
                self._timer = threading.Timer(GRACE_S, self.end)
                self._timer.daemon = True
                self._timer.start()

    def stay(self) -> None:
        """A browser tab is there, or there again."""
        with self._lock:
            self._tabs += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def end(self) -> None:
        """Stop what is at work for it and remove all that it has kept."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        self.uploads.clear()
        for owner in (self.compute.root, self.exports.folder):
            self.compute.runs.end(owner)
        self.compute.store.release()
        had_results = self.compute.root.exists()
        _remove(self.folder)
        if not had_results:
            return
        index.forget_below(self.compute.root)
        # Curves, figures and words in memory, of everybody: they are made again when asked for.
        lru_cache.forget_made()
        words.cache_clear()
        sentences.cache_clear()


def service_for(dataset: str) -> Compute:
    """Where results of texts of this data set are kept: everybody's cache for data sets that were
    named when the program started, else the session's own, unless `POSLENS_KEEP_OWN_TEXTS`.

    Raises:
        UserError: that setting holds a value that it does not take.
    """
    if dataset in datasets.names() or KEEP_OWN_TEXTS.get() == "yes":
        return service()
    return session().compute


def session() -> Session:
    """This reader's own."""
    session = _begun()
    if session is None:
        with _of_people_lock:
            # Another tab of the same person may just have begun it.
            session = _begun() or Session(service(), _new_folder())
            for other in [one for one, its in _of_people.items() if its.ended]:
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
    """The data sets that this reader has uploaded, by name."""
    session = _begun()
    if session is None:
        return {}
    _tied(session)
    return session.uploads


def owners() -> set[Path]:
    """The folders whose runs this reader may see: everybody's cache, and their own."""
    session = _begun()
    own = set() if session is None else {session.compute.root, session.exports.folder}
    return {service().root, *own}


@st.cache_resource(
    scope="session", show_spinner=False, on_release=lambda tied: tied.leave(), max_entries=1
)
def _tied(_session: Session) -> Session:
    """Called once a connection: Streamlit releases it when the browser is gone."""
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
    """This process's folder of sessions, locked while the process lives."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # for this user alone
    lock = _lock_of(folder)
    lock.acquire()
    atexit.register(_close, folder, lock)
    return folder


def _lock_of(folder: Path) -> FileLock:
    # Of the process, not of the session's thread that happens to take it.
    return FileLock(folder / _LOCK, thread_local=False)


def _close(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()


def _remove(folder: Path) -> None:
    """Remove a session's folder and leave an empty file of its name: work that began before and
    ends later finds no place to keep its result."""
    gone = folder.with_name(f"{folder.name}.gone")
    for _ in range(100):
        with suppress(OSError):
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        with suppress(OSError):
            os.close(os.open(folder, os.O_CREAT | os.O_EXCL, 0o600))
            return


def remove_left_over() -> None:
    """Remove what processes left that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = _lock_of(folder)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            _close(folder, lock)
