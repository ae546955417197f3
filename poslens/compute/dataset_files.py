"""Digests of the files of data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from poslens.attribution import datasets
from poslens.attribution.paths import FileState, file_state
from poslens.cache.keys import file_digest
from poslens.cache.lru_cache import LRUCache


def dataset_digest(dataset: str) -> str:
    """16 hexadecimal digits that identify the contents of the files from which a registered data
    set, or one that was derived from it (`NAME, ...`), was read: the first of the SHA-256 of its
    only file, or else of the output of `sha256sum` for its files in alphabetical order.

    Empty if the files have changed since they were read. It is also empty for typed and uploaded
    texts; the name of an upload contains a digest.
    """
    name = dataset
    while name not in datasets.names():
        name, comma, _ = name.rpartition(", ")
        if not comma:
            return ""
    files = datasets.files_read(name)
    return _digests.get(tuple(files.values()), lambda: _digest_of(files)) if files else ""


_digests: LRUCache[str] = LRUCache(64)


def _digest_of(files: Mapping[str, FileState]) -> str:
    digests = {}
    for name, state in sorted(files.items()):
        path = Path(state[0])
        try:
            digests[name] = file_digest(path)
            if file_state(path) != state:
                return ""
        except OSError:  # it is gone
            return ""
    if len(digests) == 1:
        return digests.popitem()[1][:16]
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    return hashlib.sha256(lines.encode("utf-8", "replace")).hexdigest()[:16]
