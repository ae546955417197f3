"""Shipped results, read where the user's cache has none of its own.

A Parquet file is unpacked into a database with the store's layout when a result in it is first
requested: below the cache's folder, under the file's checksum. That copy can be deleted at any
time; deleting, exporting and maintaining the cache ignore it.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

from poslens.attribution.errors import UserError
from poslens.attribution.types import Method
from poslens.cache.shipped.manifest import FOLDER, ShippedFile, shipped_files
from poslens.cache.storage import index
from poslens.cache.storage.files import LAYOUT, ModelKey
from poslens.cache.storage.store import Store

UNPACKED = "shipped"
_ABANDONED_S = 3600
_LOG = logging.getLogger(__name__)


class Shipped:
    """The shipped results in `source`, unpacked below the cache's folder `root`."""

    def __init__(self, root: Path, source: Path = FOLDER) -> None:
        self._place, self._source = root / UNPACKED, source
        self._files = {(file.fingerprint, file.method): file for file in shipped_files(source)}
        self._names = {folder_name(file) for file in self._files.values()}
        self._refused: set[str] = set()
        self._lock = threading.Lock()

    def folder(self, model: ModelKey, method: Method) -> Path | None:
        """The folder with the results of this model and method; None if none ship or they are
        damaged."""
        file = self._files.get((model.fingerprint, method.core))
        return None if file is None else self._unpacked(file)

    def unpack(self) -> None:
        """Unpack all files that aren't unpacked yet, ahead of the first request."""
        for file in self._files.values():
            self._unpacked(file)

    def _unpacked(self, file: ShippedFile) -> Path | None:
        if file.name in self._refused:
            return None
        folder = self._place / folder_name(file)
        if not folder.is_dir():
            with self._lock:
                if not folder.is_dir() and file.name not in self._refused:
                    try:
                        self._unpack(file, folder)
                    except UserError as reason:
                        self._refuse(file, reason)
        return None if file.name in self._refused else folder

    def refuse(self, model: ModelKey, method: Method, reason: UserError) -> None:
        """Ignore the results of this model and method from now on; the next start unpacks them
        again."""
        file = self._files[model.fingerprint, method.core]
        self._refuse(file, reason)
        shutil.rmtree(self._place / folder_name(file), ignore_errors=True)

    def _refuse(self, file: ShippedFile, reason: UserError) -> None:
        if file.name not in self._refused:
            self._refused.add(file.name)
            _LOG.warning("Included results skipped, %s: %s", file.name, reason)

    def _unpack(self, file: ShippedFile, folder: Path) -> None:
        """Unpack into a temporary folder, which is renamed to `folder` once complete."""
        # Imported here: it imports pyarrow's Parquet reader, which pages with other results don't
        # need.
        from poslens.cache.exchange.transfer import take_stream

        data = _content(self._source, file)
        part = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            shutil.rmtree(part, ignore_errors=True)
            store = Store(part)
            take_stream(store, io.BytesIO(data), file.name)
            store.release()
            index.forget_below(part)
            self._remove_former()
            with suppress(OSError):  # another process has unpacked it at the same time
                part.rename(folder)
            if not folder.is_dir():
                raise UserError("Its folder below the cache cannot be written.")
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _remove_former(self) -> None:
        """Remove results unpacked from an earlier version's files, and incomplete folders of killed
        processes."""
        for old in self._place.iterdir():
            unfinished = old.name.startswith(".")
            if (unfinished and _age(old) > _ABANDONED_S) or not (
                unfinished or old.name in self._names
            ):
                shutil.rmtree(old, ignore_errors=True)


def _age(path: Path) -> float:
    """Seconds since a folder was last modified; 0 if it no longer exists."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def folder_name(file: ShippedFile) -> str:
    """The folder that a file is unpacked into. It has the store's layout in its name, because a
    later version may ship the same file and unpack it in another layout."""
    return f"{file.sha256[:16]}-{LAYOUT}"


def _content(source: Path, file: ShippedFile) -> bytes:
    """The file's bytes, verified before they are parsed: a damaged Parquet file can crash the
    process that opens it."""
    try:
        data = (source / file.name).read_bytes()
    except OSError as error:
        raise UserError(f"It cannot be read ({error.strerror}).") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise UserError("It is damaged: reinstall PosLens.")
    return data
