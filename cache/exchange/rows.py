"""Rows of the store as Arrow record batches, for export, import and merging of caches.

Payloads are copied unchanged: their checksums cover the item and its texts, not the file that
contains them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from poslens.attribution.curves.positions import document_curve, document_magnitudes
from poslens.attribution.types import N_BINS, Method
from poslens.cache.storage import rows
from poslens.cache.storage.blocks import curve_column, curve_name
from poslens.cache.storage.codec import DamagedPayload, decode, identity
from poslens.cache.storage.files import Files, ModelKey
from poslens.cache.storage.index import ABSENT, RESULT, BlockIndex, index_of
from poslens.cache.storage.rows import ATTRIBUTION, EMBEDDING, ROW, portion

_STORED = ("kind", "dataset", "pair_id", "text", "reason", "payload")


def stored(
    store: Files, model: ModelKey, method: Method, size: int = 1000
) -> Iterator[pa.RecordBatch]:
    """Yield everything stored under a model and a method's core, in batches of up to `size` rows
    (schema ROW), with the curve for the method's curve parameters; a curve that is not stored is
    derived from the result.

    Each batch is read in its own transaction: results written in the meantime may or may not be
    included.

    Raises:
        UserError: the file can't be read.
    """
    index, after = index_of(store.path(model, method)), 0
    while True:
        with index.lock, store.reading(model, method) as db:
            listed = [] if db is None else portion(db, after, size)
            if db is None or not listed:
                return
            index.refresh(db)
            batch = _batch(db, index, listed, method)
        after = listed[-1][0]
        yield batch
        if len(listed) < size:
            return  # What was added since then may replace a row of this batch.


def _batch(
    db: sqlite3.Connection, index: BlockIndex, listed: list[tuple[Any, ...]], method: Method
) -> pa.RecordBatch:
    numbers, *values = zip(*listed, strict=True)
    columns: dict[str, Any] = dict(zip(_STORED, values, strict=True))
    is_attribution = np.array([kind == ATTRIBUTION for kind in columns["kind"]], np.bool_)
    ids = np.where(is_attribution, np.array(numbers, np.int64), 0)
    state = index.state[ids]
    done = np.flatnonzero(state == RESULT)
    there, values_there, magnitudes_there = index.curves(db, curve_name(method), ids[done])
    curves = np.zeros((len(ids), N_BINS), np.float32)
    curves[done[there]] = values_there
    magnitudes = curves.copy()
    magnitudes[done[there]] = magnitudes_there
    has_curve = np.zeros(len(ids), np.bool_)
    has_curve[done[there]] = True
    for place in done[~there].tolist():
        _, _, dataset, item, text, _, payload = listed[place]
        with suppress(DamagedPayload):
            result = decode(payload, "", method, item, identity(dataset, item, text))
            curves[place] = document_curve(result, method)
            magnitudes[place] = document_magnitudes(result, method)
            has_curve[place] = True
    signed = has_curve & (curves != magnitudes).any(1)
    summaries = index.summaries(ids)
    columns |= {
        "variant": [curve_name(method) if has else None for has in has_curve],
        "curve": curve_column(curves, has_curve),
        "magnitudes": curve_column(magnitudes, signed),
    }
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else summaries[field.name].combine_chunks()
        for field in ROW
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=ROW)
    # Attributions whose summary is damaged are left out until it is restored.
    return batch.filter(pa.array(~is_attribution | (state != ABSENT)))


def add(
    store: Files, model: ModelKey, method: Method, batches: Iterable[pa.RecordBatch], part: str = ""
) -> tuple[int, int]:
    """Store the rows (schema ROW) that the file lacks, in one transaction. Returns the number of
    rows added, and the number skipped because the file has a row of the same item for another text,
    or vectors of another length.

    A stored result is kept; a failure is replaced by a result. With `part`, that name is recorded
    in the same transaction, and a part that is already recorded adds nothing. The caller must have
    checked the rows with `incoming.require_whole`.

    Raises:
        UserError: the file can't be written.
    """
    offered = list(batches)
    added = conflicts = 0
    with store.writing(model, method) as db:
        if part:
            if db.execute("SELECT 1 FROM ingested WHERE part = ?", (part,)).fetchone():
                return 0, 0
            db.execute("INSERT INTO ingested VALUES (?)", (part,))
        for batch in offered:
            fresh, differing = _fresh(db, batch)
            conflicts += differing
            added += len(fresh)
            chosen = batch.take(pa.array(fresh, pa.int64()))
            rows.append(db, chosen, chosen.column("payload").to_pylist())
    return added, conflicts


def _fresh(db: sqlite3.Connection, batch: pa.RecordBatch) -> tuple[list[int], int]:
    """The indices of the rows to add, and the number of conflicting rows."""
    fresh, conflicts = [], 0
    there: dict[tuple[str, str, str], tuple[str, bool] | None] = {}
    width = db.execute(
        "SELECT length(payload) FROM result WHERE kind >= ? AND kind < ? LIMIT 1",
        (EMBEDDING, f"{EMBEDDING}~"),
    ).fetchone()
    lengths = batch.column("payload").to_pylist()
    columns = (batch.column(name).to_pylist() for name in _STORED[:5])
    for place, (kind, dataset, item, text, reason) in enumerate(zip(*columns, strict=True)):
        key = (kind, dataset, item)
        if key not in there:
            there[key] = db.execute(
                "SELECT text, payload IS NOT NULL FROM result "
                "WHERE (kind, dataset, item) = (?, ?, ?)",
                key,
            ).fetchone()
        if kind.startswith(EMBEDDING):
            width = width or (len(lengths[place]),)
            if width[0] != len(lengths[place]):
                conflicts += 1
                continue
        row = there[key]
        if row is not None and row[0] != text:
            conflicts += 1
        elif row is None or (not row[1] and reason is None):
            there[key] = text, reason is None
            fresh.append(place)
    return fresh, conflicts


def ingested(store: Files, model: ModelKey, method: Method) -> set[str]:
    """The names of the parts that were ingested."""
    with store.reading(model, method) as db:
        return set() if db is None else {row[0] for row in db.execute("SELECT part FROM ingested")}
