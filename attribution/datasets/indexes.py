"""Indexes of large data sets on disk, so that only the first opening reads their files.

An index is valid for one state of the files and of the code that reads them. It is written
completely under another name and then renamed, so processes that open a data set at the same time
don't disturb each other, and an interruption leaves no partial index.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from poslens.attribution.datasets.index_writer import indexed, put_columns
from poslens.attribution.datasets.indexed_pairs import DamagedIndexError, IndexedPairs, PairIndex
from poslens.attribution.datasets.types import DataSet, LostDocument, Rejection
from poslens.attribution.retrievers.specs import data_folder

LAYOUT = 2
"""Part of the state of every index: raise it when the layout of the file changes."""


def place_of(*about: object) -> Path:
    """The file of a data set's index; `about` are the data set's name, path and variant."""
    digest = hashlib.blake2b(repr(about).encode("utf-8", "replace"), digest_size=16).hexdigest()
    return data_folder() / "indexes" / f"{digest}.sqlite"


def opened(place: Path, state: object) -> tuple[DataSet, list[str]] | None:
    """The data set whose index is at `place`, and the paths of the files that it was read from;
    None if there is no intact index of this state."""
    try:
        uri = f"file:{quote(str(place.absolute()))}?mode=ro&immutable=1"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (page_size,) = db.execute("PRAGMA page_size").fetchone()
        if pages * page_size != place.stat().st_size:
            return None
        index = PairIndex(db, place)
        about = index.about
        if about["state"] != _stated(state):
            return None
        rejected = tuple(_KINDS[kind](*values) for kind, values in about["rejected"])
        pairs, versions = indexed(index)
        data = DataSet(
            about["name"], about["title"], pairs, rejected, versions, about["version_name"]
        )
        return data, about["files"]
    except (OSError, sqlite3.Error, DamagedIndexError, LookupError, TypeError, ValueError):
        return None


def saved(place: Path, state: object, data: DataSet, files: Sequence[str]) -> DataSet:
    """The data set that was read from the files at these paths, with its pairs from an index at
    `place` if they are too large for memory. If that index can't be written, the pairs stay in
    their temporary index."""
    if not isinstance(data.pairs, IndexedPairs):
        with suppress(OSError):
            place.unlink()
        return data
    about = data.pairs.source.about | {
        "name": data.name,
        "version_name": data.version_name,
        "state": _stated(state),
        "rejected": [(type(row).__name__, dataclasses.astuple(row)) for row in data.rejected],
        "files": files,
    }
    with suppress(OSError, sqlite3.Error):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=place.stem, suffix=".part")
        os.close(handle)
        try:
            with closing(sqlite3.connect(name, isolation_level=None)) as target:
                data.pairs.source.copy_to(target)
                put_columns(target, {"about": json.dumps(about).encode()})
            Path(name).replace(place)
        finally:
            Path(name).unlink(missing_ok=True)
    index = opened(place, state)
    return data if index is None else index[0]


def _stated(state: object) -> str:
    return repr((LAYOUT, code_digest(), state))


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Rejection, LostDocument)}


@cache
def code_digest() -> str:
    """A digest of the code that reads data sets, since another version may read other pairs."""
    folder = Path(__file__).parent
    files = (*folder.iterdir(), folder.parent / "text.py")
    code = [path.read_bytes() for path in sorted(files) if path.is_file()]
    return hashlib.blake2b(b"\0".join(code), digest_size=16).hexdigest()
