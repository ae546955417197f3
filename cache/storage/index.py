"""In-memory index of the blocks of one file. A refresh reads only the blocks added since the last
one, so that updating a displayed curve during a run costs only as much as the new results."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poslens.attribution.types import N_BINS, Array
from poslens.cache.columns import PairColumns
from poslens.cache.storage.blocks import (
    CurveRows,
    Serials,
    numbers,
    read_blocks,
    read_curves,
)

KEPT_BYTES = 512 << 20
"""Memory limit in bytes for the indices of all files; the least recently used ones are dropped."""

ABSENT, RESULT, FAILED = 0, 1, 2

_COLUMNS: dict[str, tuple[type, float]] = {
    "text": (np.int64, 0),
    "document_tokens": (np.int32, -1),
    "tokens": (np.int32, -1),
    "start": (np.int32, -1),
    "end": (np.int32, -1),
    "characters": (np.int32, -1),
    "score": (np.float32, np.nan),
    "truncated": (np.bool_, False),
}
_NAMES = ("dataset", "pair", "language", "domain")


@dataclass(slots=True)
class _Curves:
    """Curves and magnitudes of one variant by serial, [capacity, 100], and a mask of those present.
    Both are one array until a curve with signs is added."""

    values: Array
    magnitudes: Array
    there: NDArray[np.bool_]
    last: int = 0

    @property
    def nbytes(self) -> int:
        """Memory use in bytes."""
        return self.values.nbytes * (1 if self.magnitudes is self.values else 2)

    def grow(self, capacity: int) -> None:
        """Make room for serials below `capacity`."""
        same = self.magnitudes is self.values
        self.there = _larger(self.there, capacity)
        self.values = _larger(self.values, capacity)
        self.magnitudes = self.values if same else _larger(self.magnitudes, capacity)

    def take(self, rows: CurveRows) -> None:
        """Add curves; there must be room for them."""
        if rows.magnitudes is not rows.curves and self.magnitudes is self.values:
            self.magnitudes = self.values.copy()
        places = _places(rows.serials)
        self.values[places] = rows.curves
        if self.magnitudes is not self.values:
            self.magnitudes[places] = rows.magnitudes
        self.there[places] = True


@dataclass(slots=True)
class BlockIndex:
    """One file's summaries by serial number. Use it only while holding `lock`."""

    epoch: str = ""
    last: int = 0
    size: int = 1
    lock: threading.RLock = field(default_factory=threading.RLock)
    damaged: set[int] = field(default_factory=set)
    damaged_curves: set[int] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)
    state: NDArray[np.int8] = field(default_factory=lambda: np.zeros(1, np.int8))
    dead: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1, np.bool_))
    _columns: dict[str, NDArray[Any]] = field(
        default_factory=lambda: {name: np.zeros(1, kind) for name, (kind, _) in _COLUMNS.items()}
    )
    _unread: dict[str, list[tuple[Serials, pa.Array]]] = field(
        default_factory=lambda: {name: [] for name in _COLUMNS}
    )
    _curves: dict[int, _Curves] = field(default_factory=dict)
    _unnamed: dict[str, list[tuple[Serials, pa.Array]]] = field(
        default_factory=lambda: {name: [] for name in _NAMES}
    )
    _named: dict[str, list[str | None]] = field(default_factory=dict)
    _unjoined: list[tuple[Serials, pa.RecordBatch]] = field(default_factory=list)
    _rows: dict[str, dict[str, int]] = field(default_factory=dict)
    _joined: WeakKeyDictionary[PairColumns, tuple[int, Serials]] = field(
        default_factory=WeakKeyDictionary
    )
    _strings: dict[str | None, str | None] = field(default_factory=dict)

    # -- keeping up ----------------------------------------------------------------------------

    def refresh(self, db: sqlite3.Connection) -> None:
        """Read the blocks that were added since the last refresh."""
        (epoch,) = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
        if epoch != self.epoch:
            # Another file in its place, or one whose serials were reassigned.
            fresh = BlockIndex(epoch=epoch, lock=self.lock)
            for name in self.__slots__:
                setattr(self, name, getattr(fresh, name))
        latest = db.execute("SELECT next FROM block ORDER BY id DESC LIMIT 1").fetchone()
        self._grow(latest[0] if latest else 1)
        for known, block in read_blocks(db, self.last):
            self.last = known
            if block is None:
                self.damaged.add(known)
                continue
            self._supersede(block.dead)
            self._take(block.serials, block.rows)

    def _supersede(self, dead: Serials) -> None:
        if len(dead):
            self._grow(int(dead.max()) + 1)
            self.dead[dead] = True
            self.state[dead] = ABSENT

    def _take(self, serials: Serials, rows: pa.RecordBatch) -> None:
        if not len(serials):
            return
        self._grow(int(serials.max()) + 1)
        self.state[_places(serials)] = RESULT
        reasons = rows.column("reason")
        if reasons.null_count < len(reasons):
            for place in np.flatnonzero(reasons.is_valid()).tolist():
                self.state[serials[place]] = FAILED
                self.reasons[int(serials[place])] = reasons[place].as_py()
        self.state[serials[self.dead[serials]]] = ABSENT
        # Most queries need one or two columns.
        for name, unread in self._unread.items():
            unread.append((serials, rows.column(name)))
        for name, unnamed in self._unnamed.items():
            unnamed.append((serials, rows.column(name)))
        self._unjoined.append((serials, rows.select(["dataset", "pair"])))

    def _grow(self, size: int) -> None:
        self.size = max(self.size, size)
        if size <= len(self.state):
            return
        capacity = max(size, 2 * len(self.state), 1024)
        self.state = _larger(self.state, capacity)
        self.dead = _larger(self.dead, capacity)

    def _column(self, name: str) -> NDArray[Any]:
        """One of the numeric columns by serial, up to date."""
        column = self._columns[name] = _larger(self._columns[name], len(self.state))
        for serials, values in self._unread[name]:
            column[_places(serials)] = numbers(values, _COLUMNS[name][1])
        self._unread[name].clear()
        return column

    def _kept(self, db: sqlite3.Connection, variant: int) -> _Curves:
        curves = self._curves.get(variant)
        if curves is None:
            size = len(self.state)
            values = np.zeros((size, N_BINS), np.float32)
            curves = self._curves[variant] = _Curves(values, values, np.zeros(size, np.bool_))
        for known, part in read_curves(db, variant, curves.last):
            curves.last = known
            if part is None:
                self.damaged_curves.add(known)
                continue
            past = int(part.serials.max()) + 1
            if past > len(curves.there):
                curves.grow(max(past, len(self.state)))
            curves.take(part)
        return curves

    # -- asking --------------------------------------------------------------------------------

    def curves(
        self, db: sqlite3.Connection, variant: int, serials: Serials
    ) -> tuple[NDArray[np.bool_], CurveRows]:
        """Which of `serials` have a curve under the variant [n], and the curves of those."""
        kept = self._kept(db, variant)
        inside = serials < len(kept.there)
        there = np.zeros(len(serials), np.bool_)
        there[inside] = kept.there[serials[inside]]
        values = serials[there]
        places = _places(values)
        curves = kept.values[places]
        same = kept.magnitudes is kept.values
        return there, CurveRows(values, curves, curves if same else kept.magnitudes[places])

    def column(self, name: str, serials: Serials) -> NDArray[Any]:
        """Values of one of the numeric columns [n]."""
        return self._column(name)[_places(serials)]

    def serials(self, pairs: PairColumns) -> Serials:
        """The latest serial of each pair [n]; 0 if there is none. Repeated lookups of the same
        pairs are cached until a block is added."""
        known = self._joined.get(pairs)
        if known is None or known[0] != self.last:
            self._join()
            values = np.zeros(len(pairs), np.int64)
            for dataset, places in pairs.places.items():
                ids = pairs.ids[places].tolist()
                rows = self._rows.get(dataset, {})
                values[places] = np.fromiter(map(rows.get, ids, repeat(0)), np.int64, len(ids))
            values.flags.writeable = False
            known = self._joined[pairs] = self.last, values
        return known[1]

    def names(self, name: str, serials: Serials) -> list[str | None]:
        """Data sets, pairs, languages or domains [n]."""
        listed, known = self._named.setdefault(name, []), self._strings
        listed.extend([None] * (len(self.state) - len(listed)))
        for places, column in self._unnamed[name]:
            # Equal values share one string, except for pair ids, which are distinct.
            for place, value in zip(places.tolist(), column.to_pylist(), strict=True):
                listed[place] = value if name == "pair" else known.setdefault(value, value)
        self._unnamed[name].clear()
        return [listed[serial] for serial in serials.tolist()]

    def rows(self, serials: Serials) -> list[dict[str, Any]]:
        """The full row of each serial [n], with None for missing values."""
        columns: dict[str, list[Any]] = {name: self.names(name, serials) for name in _NAMES}
        for name, (_, missing) in _COLUMNS.items():
            values = self.column(name, serials).tolist()
            columns[name] = [None if v == missing or v != v else v for v in values]
        columns["text"] = self.column("text", serials).tolist()
        columns["truncated"] = self.column("truncated", serials).tolist()
        columns["reason"] = [self.reasons.get(serial) for serial in serials.tolist()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _join(self) -> None:
        """Update the map from pairs to serials; done separately, since many queries don't need
        it."""
        for serials, names in self._unjoined:
            live = ~self.dead[serials]
            if not live.all():
                serials, names = serials[live], names.filter(pa.array(live))
            datasets, pairs = (column.fill_null("") for column in names.columns)
            ids, places = pairs.to_pylist(), serials.tolist()
            distinct = datasets.unique().to_pylist()
            if len(distinct) == 1:
                _keep_latest(self._rows.setdefault(distinct[0], {}), ids, places)
                continue
            for dataset, pair, place in zip(datasets.to_pylist(), ids, places, strict=True):
                _keep_latest(self._rows.setdefault(dataset, {}), [pair], [place])
        self._unjoined.clear()

    @property
    def bytes(self) -> int:
        """Approximate memory use in bytes; another thread may hold the lock and add curves."""
        curves = sum(curve.nbytes for curve in list(self._curves.values()))
        return curves + 400 * len(self.state)


def _places(serials: Serials) -> slice | Serials:
    """`serials` [n] as an index into arrays by serial: a slice if they are consecutive, which
    halves the time of a write and avoids the copy of a read."""
    n = len(serials)
    if n and serials[-1] - serials[0] == n - 1 and (np.diff(serials) == 1).all():
        return slice(int(serials[0]), int(serials[-1]) + 1)
    return serials


def _keep_latest(rows: dict[str, int], ids: list[str], places: list[int]) -> None:
    """Add serials by pair; the latest one wins."""
    if rows.keys().isdisjoint(ids):
        expected = len(rows) + len(ids)
        rows.update(zip(ids, places, strict=True))
        if len(rows) == expected:
            return
    for pair, place in zip(ids, places, strict=True):
        rows[pair] = max(rows.get(pair, 0), place)


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


def forget(path: Path) -> None:
    """Drop the cached index of a file."""
    with _guard:
        _kept.pop(path, None)


def forget_below(folder: Path) -> None:
    """Drop the cached indices of all files below `folder`."""
    with _guard:
        for path in [path for path in _kept if path.is_relative_to(folder)]:
            del _kept[path]


def forget_all() -> None:
    """Drop all cached indices."""
    with _guard:
        _kept.clear()
