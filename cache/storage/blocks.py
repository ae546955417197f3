"""Blocks: columns of many attributions in one value, so that lists and averages never read the
results themselves.

A block holds the summaries, the curves or the magnitudes of some results. These are only appended.
Their rows are numbered by the ids of the results, which grow with each append: of several rows of a
pair, the last one counts, and a block written later never holds an earlier row. Other blocks hold a
mean of many curves each (means.py). Each block has a checksum over all its contents.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poslens.attribution.curves import positions
from poslens.attribution.curves.text_axis import over_text
from poslens.attribution.types import N_BINS, Array, Method

Ids = NDArray[np.int64]

SUMMARY = "summary"
_SUMMARY = pa.schema(
    [
        ("id", pa.int64()),
        ("dataset", pa.string()),
        ("pair_id", pa.string()),
        ("text", pa.int64()),
        ("language", pa.string()),
        ("domain", pa.string()),
        ("document_tokens", pa.int32()),
        ("tokens", pa.int32()),
        ("evidence_start", pa.int32()),
        ("evidence_end", pa.int32()),
        ("characters", pa.int32()),
        ("score", pa.float32()),
        ("truncated", pa.bool_()),
        ("reason", pa.string()),
    ]
)
"""The summary of a result, or of a failure, which has a `reason` and no score. `document_tokens` is
the data set's token count, `tokens` the model's; the evidence and the document's `characters` are
in characters. `text` is the texts' fingerprint as a signed integer."""

_CURVE = pa.list_(pa.float32(), N_BINS)
_VALUES = pa.schema([("id", pa.int64()), ("values", _CURVE)])

MEAN = "mean "
"""Prefix of the names of blocks with one mean curve each; see `means`."""

_MEAN = pa.schema([("state", pa.string()), ("mean", pa.string())])
"""The state of the results that a curve averages, and the mean as JSON."""

SMALL = 1024
"""Blocks with fewer rows than this are merged with their neighbors every `MERGE_EVERY` blocks."""

LARGE = 1 << 16
"""Maximum number of rows of a merged block."""

MERGE_EVERY = 128


def schema_of(name: str) -> pa.Schema:
    """The schema of the blocks with this name."""
    if name.startswith(MEAN):
        return _MEAN
    return _SUMMARY if name == SUMMARY else _VALUES


def curve_name(method: Method) -> str:
    """The name of the blocks with the method's curves: its curve parameters as JSON."""
    return json.dumps(dict(method.curve_params))


def magnitudes_name(curve: str) -> str:
    """The name of the blocks with the magnitudes of the curves named `curve`. Curves without signs
    have no such blocks, since they equal their magnitudes."""
    return f"magnitudes {curve}"


def current_names() -> set[str]:
    """The names of all curves and magnitudes of this version. Other curves, from an import or an
    earlier version, are never requested."""
    methods = [
        Method("", {}, positions.curve_params(normalization, resampling))
        for normalization in positions.NORMALIZATIONS
        for resampling in positions.RESAMPLINGS
    ]
    curves = {curve_name(each) for method in methods for each in (method, over_text(method))}
    return curves | set(map(magnitudes_name, curves))


def epoch(db: sqlite3.Connection) -> str:
    """Identifies the file and its numbering of results."""
    value: str = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0]
    return value


def names(db: sqlite3.Connection) -> list[str]:
    """The names of the file's blocks."""
    return [name for (name,) in db.execute("SELECT DISTINCT name FROM block ORDER BY name")]


# -- writing: inside a transaction -----------------------------------------------------------------


def append(db: sqlite3.Connection, name: str, rows: pa.RecordBatch) -> None:
    """Add a block. Its ids must not be lower than those of earlier blocks of this name, except for
    curves that were derived later."""
    if rows.num_rows and _write(db, name, rows) % MERGE_EVERY == 0:
        _merge(db)


def curve_column(values: Array, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """A column of curves [n, 100], null where not `valid` [n]."""
    flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
    mask = None if valid is None else pa.array(~valid)
    return pa.FixedSizeListArray.from_arrays(flat, N_BINS, mask=mask)


def append_curves(
    db: sqlite3.Connection, curve: str, ids: Ids, curves: Array, magnitudes: Array
) -> None:
    """Add a block of curves and one of magnitudes [n, 100] of the results with these ids [n]. Both
    are the same array if there are no signs."""
    named = {curve: curves}
    if magnitudes is not curves:
        named[magnitudes_name(curve)] = magnitudes
    for name, values in named.items():
        columns = [pa.array(ids), curve_column(values)]
        append(db, name, pa.RecordBatch.from_arrays(columns, schema=_VALUES))


def _write(db: sqlite3.Connection, name: str, rows: pa.RecordBatch) -> int:
    data = rows.serialize().to_pybytes()
    block = db.execute(
        "INSERT INTO block (name, n, checksum, data) VALUES (?, ?, ?, ?)",
        (name, rows.num_rows, _checksum(name, data), data),
    ).lastrowid
    return block or 0


def _merge(db: sqlite3.Connection) -> None:
    """Merge the small blocks at the end of each recently extended name. The merged block is
    inserted before its parts are deleted, so that ids of blocks grow, and a reader needs only the
    blocks after the last one it has read."""
    recent = (
        f"SELECT DISTINCT name FROM (SELECT name FROM block ORDER BY id DESC LIMIT {MERGE_EVERY})"
    )
    for (name,) in db.execute(recent).fetchall():
        large = db.execute(
            "SELECT id FROM block WHERE name = ? AND n >= ? ORDER BY id DESC LIMIT 1", (name, SMALL)
        ).fetchone() or (0,)
        parts = {block: rows for block, rows in read(db, name, *large) if rows is not None}
        if len(parts) > 1:
            _write_all(db, name, pa.Table.from_batches(parts.values()))
            db.executemany("DELETE FROM block WHERE id = ?", [(block,) for block in parts])


def rewrite(db: sqlite3.Connection, live: Ids, restored: list[pa.RecordBatch]) -> None:
    """Rewrite all intact blocks, adding the summaries in `restored` and dropping rows without a
    `live` id and curves of other versions. The file gets a new epoch, so that readers start
    again."""
    current = current_names() | {SUMMARY}
    for name in {SUMMARY, *names(db)}:
        parts = [rows for _, rows in read(db, name) if rows is not None]
        parts += restored if name == SUMMARY else []
        db.execute("DELETE FROM block WHERE name = ?", (name,))
        if name in current:
            rows = pa.Table.from_batches(parts, schema_of(name)).combine_chunks()
            rows = rows.filter(pa.array(np.isin(rows["id"].to_numpy(), live)))
            _write_all(db, name, rows.sort_by("id"))
    db.execute("UPDATE meta SET value = hex(randomblob(8)) WHERE key = 'epoch'")


def _write_all(db: sqlite3.Connection, name: str, rows: pa.Table) -> None:
    for start in range(0, rows.num_rows, LARGE):
        for part in rows.slice(start, LARGE).combine_chunks().to_batches():
            _write(db, name, part)


# -- reading ---------------------------------------------------------------------------------------


def read(
    db: sqlite3.Connection, name: str, after: int = 0
) -> Iterator[tuple[int, pa.RecordBatch | None]]:
    """Yield id and rows of each block of this name with an id above `after`, oldest first; None if
    it is damaged."""
    schema = schema_of(name)
    for block, n, checksum, data in db.execute(
        "SELECT id, n, checksum, data FROM block WHERE name = ? AND id > ? ORDER BY id",
        (name, after),
    ):
        rows = None
        if isinstance(data, bytes) and checksum == _checksum(name, data):
            rows = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        yield block, rows if rows is not None and rows.num_rows == n else None


def numbers(column: pa.Array, missing: float = 0) -> NDArray[Any]:
    """A column of numbers or flags as a numpy array, with `missing` in place of nulls."""
    filled = column.fill_null(missing) if column.null_count else column
    values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def values_of(column: pa.Array) -> Array:
    """A column of curves as an array [n, 100], without a copy; 0 in place of nulls."""
    values: Array = numbers(column.values).reshape(-1, N_BINS)
    return values[column.offset : column.offset + len(column)]


_WIDTH = 512


def _checksum(name: str, data: bytes) -> int:
    """A checksum of the bytes as a table of 64-bit words: the CRC of the sums of its rows and
    columns. It detects a changed byte as reliably as a CRC of all bytes (one changed word changes
    two sums) in half the time, which dominates the reading of curves."""
    whole = len(data) // (8 * _WIDTH) * (8 * _WIDTH)
    words = np.frombuffer(data, np.uint64, whole // 8).reshape(-1, _WIDTH)
    check = zlib.crc32(data[whole:], zlib.crc32(name.encode()))
    return zlib.crc32(words.sum(0).tobytes(), zlib.crc32(words.sum(1).tobytes(), check))
