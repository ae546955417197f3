"""Digests of model files, cached on disk so that gigabytes of weights are not read at each start.

A cached digest is valid for a path with the size, modification time, change time and inode that the
file had when it was read. Programs can't set the change time, so a file replaced by one of the same
name, size and modification time is detected.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

Key = tuple[str, int, int, int, int]

_MAX = 10_000
_guard = threading.Lock()


def key_of(path: Path) -> Key:
    """The file attributes that a cached digest is valid for."""
    stat = path.stat()
    return str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


class Digests:
    """Digests in one JSON file next to the cache. A file that is damaged or can't be read or
    written counts as empty."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def get(self, key: Key) -> str | None:
        """The cached digest, or None if there is none or the file has changed since."""
        entry = self._read().get(key[0])
        return entry[4] if entry and tuple(entry[:4]) == key[1:] else None

    def put(self, key: Key, digest: str) -> None:
        """Store a digest. The JSON file is replaced atomically; if two processes write at the same
        time, one digest is lost and its model file is read again."""
        with _guard, suppress(OSError):
            entries = self._read()
            entries.pop(key[0], None)
            entries[key[0]] = [*key[1:], digest]
            while len(entries) > _MAX:
                del entries[next(iter(entries))]
            self.place.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.place.parent, prefix=self.place.name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    json.dump(entries, stream)
                    stream.flush()
                    os.fsync(stream.fileno())
                Path(name).replace(self.place)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _read(self) -> dict[str, list[Any]]:
        try:
            entries = json.loads(self.place.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(entries, dict):
            return {}
        return {path: entry for path, entry in entries.items() if _is_entry(entry)}


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 5
        and all(isinstance(number, int) for number in entry[:4])
        and isinstance(entry[4], str)
        and len(entry[4]) == 64
    )
