"""Digests of model files, cached on disk so that gigabytes of weights are not read at each start.

A cached digest is valid for a file in the state (`file_state`) that it had when it was read. The
cache is one JSON file; a file that is damaged or can't be read or written counts as empty.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from poslens.attribution.errors import UserError
from poslens.attribution.paths import FileState
from poslens.cache.exchange.atomic_file import replacing

_MAX = 10_000
_guard = threading.Lock()


def find(place: Path, state: FileState) -> str | None:
    """The digest cached at `place`, or None if there is none or the file has changed since."""
    entry = _read(place).get(state[0])
    return entry[4] if entry and tuple(entry[:4]) == state[1:] else None


def put(place: Path, state: FileState, digest: str) -> None:
    """Cache a digest at `place`. If two processes write at the same time, one digest is lost and
    its model file is read again."""
    with _guard, suppress(OSError, UserError):
        entries = _read(place)
        entries.pop(state[0], None)
        entries[state[0]] = [*state[1:], digest]
        while len(entries) > _MAX:
            del entries[next(iter(entries))]
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as stream:
            stream.write(json.dumps(entries).encode())


def _read(place: Path) -> dict[str, list[Any]]:
    try:
        entries = json.loads(place.read_text(encoding="utf-8"))
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
