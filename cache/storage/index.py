"""In-memory index of the blocks of one file. A refresh reads only the blocks added since the last
one, so that updating a displayed curve during a run costs only as much as the new results."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, fields
from itertools import repeat
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from poslens.attribution.pairs import Pairs
from poslens.attribution.types import N_BINS, Array
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import SUMMARY, Ids, magnitudes_name, numbers, values_of

KEPT_BYTES = 512 << 20
"""Memory limit in bytes for the indices of all files; the least recently used ones are dropped."""

ABSENT, RESULT, FAILED = 0, 1, 2

_COLUMNS: dict[str, tuple[type, float]] = {
    "text": (np.int64, 0),
    "score": (np.float32, np.nan),
    "truncated": (np.bool_, False),
}


@dataclass(slots=True)
class _Values:
    """Curves or magnitudes by id [capacity, 100], and a mask of those present."""

    values: Array = field(default_factory=lambda: np.zeros((1, N_BINS), np.float32))
    there: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, np.bool_))
    last: int = 0


@dataclass(slots=True)
class BlockIndex:
    """One file's summaries and curves by the id of their result. Use it only while holding
    `lock`."""

    epoch: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)
    damaged: bool = False
    """Whether a block that was read since the last epoch is damaged."""
    reasons: dict[int, str] = field(default_factory=dict)
    state: NDArray[np.int8] = field(default_factory=lambda: np.zeros(1, np.int8))
    _last: int = 0
    _newest: int = 0
    _columns: dict[str, NDArray[Any]] = field(
        default_factory=lambda: {name: np.zeros(1, kind) for name, (kind, _) in _COLUMNS.items()}
    )
    _rows: list[pa.RecordBatch] = field(default_factory=list)
    _joined: int = 0
    """How many of `_rows` are in `_ids`."""
    _ids: dict[str, dict[str, int]] = field(default_factory=dict)
    _asked: WeakKeyDictionary[Pairs, tuple[int, Ids]] = field(default_factory=WeakKeyDictionary)
    _values: dict[str, _Values] = field(default_factory=dict)

    # -- refreshing ----------------------------------------------------------------------------

    def refresh(self, db: sqlite3.Connection) -> None:
        """Read the blocks that were added since the last refresh."""
        if (epoch := blocks.epoch(db)) != self.epoch:
            # Another file in its place, or one whose blocks were rewritten.
            fresh = BlockIndex(epoch=epoch, lock=self.lock)
            for each in fields(self):
                setattr(self, each.name, getattr(fresh, each.name))
        self._grow(db.execute("SELECT max(id) FROM result").fetchone()[0] or 0)
        for block, rows in blocks.read(db, SUMMARY, self._last):
            self._last = block
            if rows is None:
                self.damaged = True
            else:
                self._take(rows)

    def _take(self, rows: pa.RecordBatch) -> None:
        ids = numbers(rows.column("id"))
        # The rows of a merged block may have been read before.
        if len(ids) and ids[0] <= self._newest:
            rows = rows.slice(int(np.searchsorted(ids, self._newest, "right")))
            ids = numbers(rows.column("id"))
        if not len(ids):
            return
        self._newest = int(ids[-1])
        self._grow(self._newest)
        places = _places(ids)
        self.state[places] = RESULT
        reasons = rows.column("reason")
        if reasons.null_count < len(reasons):
            for place in np.flatnonzero(reasons.is_valid()).tolist():
                self.state[ids[place]] = FAILED
                self.reasons[int(ids[place])] = reasons[place].as_py()
        for name, (_, missing) in _COLUMNS.items():
            self._columns[name][places] = numbers(rows.column(name), missing)
        self._rows.append(rows)

    def _grow(self, newest: int) -> None:
        if newest >= len(self.state):
            capacity = max(newest + 1, 2 * len(self.state), 1024)
            self.state = _larger(self.state, capacity)
            self._columns = {name: _larger(old, capacity) for name, old in self._columns.items()}

    def _all(self, db: sqlite3.Connection, name: str) -> _Values:
        """All curves or magnitudes of this name."""
        stored = self._values.setdefault(name, _Values())
        for block, rows in blocks.read(db, name, stored.last):
            stored.last = block
            if rows is None:
                self.damaged = True
                continue
            ids = numbers(rows.column("id"))
            if ids.max() >= len(stored.there):
                capacity = max(int(ids.max()) + 1, len(self.state))
                stored.there = _larger(stored.there, capacity)
                stored.values = _larger(stored.values, capacity)
            places = _places(ids)
            stored.values[places] = values_of(rows.column("values"))
            stored.there[places] = True
        return stored

    # -- lookups -------------------------------------------------------------------------------

    def curves(
        self, db: sqlite3.Connection, curve: str, ids: Ids
    ) -> tuple[NDArray[np.bool_], Array, Array]:
        """Which of `ids` have a curve of this name [n], and the curves [m, 100] and magnitudes
        [m, 100] of those; the same array if there are no signs."""
        stored, signed = self._all(db, curve), self._all(db, magnitudes_name(curve))
        there = _mask(stored, ids)
        ids = ids[there]
        curves = magnitudes = stored.values[_places(ids)]
        if (signs := _mask(signed, ids)).any():
            magnitudes = np.where(signs[:, None], signed.values[np.where(signs, ids, 0)], curves)
        return there, curves, magnitudes

    def column(self, name: str, ids: Ids) -> NDArray[Any]:
        """Texts, scores or flags of truncation [n]."""
        return self._columns[name][_places(ids)]

    def ids(self, pairs: Pairs) -> Ids:
        """The id of each pair's last row [n]; 0 if there is none. Repeated lookups of the same
        pairs are cached until a row is added."""
        answer = self._asked.get(pairs)
        if answer is None or answer[0] != self._newest:
            self._join()
            values = np.zeros(len(pairs), np.int64)
            for dataset, places in pairs.places.items():
                names = pairs.ids[places].tolist()
                rows = self._ids.get(dataset, {})
                values[places] = np.fromiter(map(rows.get, names, repeat(0)), np.int64, len(names))
            values.flags.writeable = False
            answer = self._asked[pairs] = self._newest, values
        return answer[1]

    def _join(self) -> None:
        """Update the map from pairs to ids; done separately, since many queries don't need it."""
        for rows in self._rows[self._joined :]:
            datasets = rows.column("dataset")
            for dataset in (distinct := datasets.unique().to_pylist()):
                some = rows if len(distinct) == 1 else rows.filter(pc.equal(datasets, dataset))
                pairs, ids = some.column("pair_id").to_pylist(), some.column("id").to_pylist()
                self._ids.setdefault(dataset, {}).update(zip(pairs, ids, strict=True))
        self._joined = len(self._rows)

    def summaries(self, ids: Ids) -> pa.Table:
        """The summary of each id [n]; nulls where there is none."""
        table = pa.Table.from_batches(self._rows, blocks.schema_of(SUMMARY)).combine_chunks()
        if self._joined == len(self._rows):
            self._rows = table.to_batches()
            self._joined = len(self._rows)
        there = self.state[ids] != ABSENT
        places = np.searchsorted(table["id"].to_numpy(), ids[there])
        indices = np.zeros(len(ids), np.int64)
        indices[there] = places
        return table.take(pa.array(indices, mask=~there))

    @property
    def bytes(self) -> int:
        """Approximate memory use in bytes; another thread may hold the lock and add curves."""
        curves = sum(stored.values.nbytes for stored in list(self._values.values()))
        return curves + 400 * len(self.state)


def _mask(stored: _Values, ids: Ids) -> NDArray[np.bool_]:
    """Which of `ids` have values [n]."""
    inside = ids < len(stored.there)
    there: NDArray[np.bool_] = inside & stored.there[np.where(inside, ids, 0)]
    return there


def _places(ids: Ids) -> slice | Ids:
    """`ids` [n] as an index into arrays by id: a slice if they are consecutive, which halves the
    time of a write and avoids the copy of a read."""
    n = len(ids)
    if n and ids[-1] - ids[0] == n - 1 and (np.diff(ids) == 1).all():
        return slice(int(ids[0]), int(ids[-1]) + 1)
    return ids


def _larger(array: NDArray[Any], size: int) -> NDArray[Any]:
    if size <= len(array):
        return array
    # Zero pages that are never written take no memory.
    grown = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


_kept: OrderedDict[Path, BlockIndex] = OrderedDict()
_guard = threading.Lock()


def index_of(path: Path) -> BlockIndex:
    """This process's index of the file at `path`."""
    with _guard:
        block_index = _kept.setdefault(path, BlockIndex())
        _kept.move_to_end(path)
        total = sum(index.bytes for index in _kept.values())
        while total > KEPT_BYTES and len(_kept) > 1:
            _, dropped = _kept.popitem(last=False)
            total -= dropped.bytes
        return block_index


def forget_below(folder: Path) -> None:
    """Drop the cached indices of all files at or below `folder`."""
    with _guard:
        for path in [path for path in _kept if path.is_relative_to(folder)]:
            del _kept[path]
