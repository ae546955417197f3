"""Attributions as Arrow record batches, for export, import and merging of caches.

An entry consists of a summary with its curve and the encoded result, which is copied unchanged: its
checksum covers the pair and its texts, not the file that contains it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from poslens.attribution.curves.positions import document_curve, document_magnitudes
from poslens.attribution.types import N_BINS, Array, Method
from poslens.cache.keys import signed, unsigned
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import Serials, variant_params
from poslens.cache.storage.codec import DamagedPayload, decode, identity
from poslens.cache.storage.files import Files, ModelKey
from poslens.cache.storage.index import RESULT, BlockIndex, index_of

ENTRY = pa.schema(
    [
        ("dataset", pa.string()),
        ("pair_id", pa.string()),
        ("text", pa.string()),
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
        ("variant", pa.string()),
        ("curve", pa.list_(pa.float32(), N_BINS)),
        ("magnitudes", pa.list_(pa.float32(), N_BINS)),
        ("payload", pa.binary()),
    ]
)
"""`text` is the texts' fingerprint (16 hexadecimal digits), `variant` the curve's parameters as
JSON. A failure has a `reason` and neither score, curve nor payload. `magnitudes` is null if the
curve has no signs and so equals its magnitudes."""

_SAME = {"pair": "pair_id", "start": "evidence_start", "end": "evidence_end"}


def entries(
    store: Files, model: ModelKey, method: Method, rows: int = 1000
) -> Iterator[pa.RecordBatch]:
    """Yield everything stored under a model and a method's core, in batches of about `rows`
    entries, with the curve for the method's curve parameters; a curve that is not stored is derived
    from the result.

    Each batch is read in its own transaction: results written in the meantime may or may not be
    included.

    Raises:
        UserError: the file can't be read.
    """
    index = index_of(store.path(model, method))

    def batch(start: int) -> tuple[pa.RecordBatch | None, int]:
        with index.lock, store.reading(model, method) as db:
            if db is None:
                return None, 0
            index.refresh(db)
            serials = start + np.flatnonzero(index.state[start : index.size])[:rows]
            if not len(serials):
                return None, 0
            return _batch(db, index, serials, method), int(serials[-1]) + 1

    found, start = batch(0)
    while found is not None:
        yield found
        found, start = batch(start)


def _batch(
    db: sqlite3.Connection, index: BlockIndex, serials: Serials, method: Method
) -> pa.RecordBatch:
    rows = index.rows(serials)
    variant = variant_params(method)
    results = np.flatnonzero(index.state[serials] == RESULT)
    there, stored = index.curves(db, blocks.variants(db).get(variant, 0), serials[results])
    for n, place in enumerate(results[there].tolist()):
        rows[place] |= curve_columns(method, stored.curves[n], stored.magnitudes[n])
    lacking = set(results[~there].tolist())
    listed = []
    for place, (serial, row) in enumerate(zip(serials.tolist(), rows, strict=True)):
        found = db.execute("SELECT data FROM payload WHERE id = ?", (serial,)).fetchone()
        entry = {_SAME.get(name, name): value for name, value in row.items()}
        entry |= {"text": unsigned(row["text"]), "payload": found[0] if found else None}
        if place in lacking and found is not None:
            entry |= _made(entry, method)
        if found is not None:
            listed.append({name: entry.get(name) for name in ENTRY.names})
    return pa.RecordBatch.from_pylist(listed, schema=ENTRY)


def curve_columns(method: Method, curve: Array, magnitudes: Array) -> dict[str, Any]:
    """A result's curve [100] and magnitudes [100] as columns of an entry."""
    signed = not np.array_equal(curve, magnitudes)
    return {
        "variant": variant_params(method),
        "curve": curve,
        "magnitudes": magnitudes if signed else None,
    }


def _made(entry: dict[str, Any], method: Method) -> dict[str, Any]:
    """Columns of a curve that is not stored, derived from the result; empty if the result is
    damaged."""
    key = identity(entry["dataset"], entry["pair_id"], entry["text"])
    with suppress(DamagedPayload):
        result = decode(entry["payload"], "", method, entry["pair_id"], key)
        curve, magnitudes = document_curve(result, method), document_magnitudes(result, method)
        return curve_columns(method, curve, magnitudes)
    return {}


def add(
    store: Files,
    model: ModelKey,
    method: Method,
    batches: Iterable[pa.RecordBatch],
    *,
    part: str = "",
) -> int:
    """Store the entries that the file lacks, in one transaction. Returns the number of entries
    added.

    A stored result of the same pair and texts is kept; a failure is replaced by a result. With
    `part`, that name is recorded in the same transaction, and a part that is already recorded adds
    nothing. The caller must have checked the entries with `incoming.require_whole`.

    Raises:
        UserError: the file can't be written.
    """
    # Converted before the lock is taken.
    offered = [batch.to_pylist() for batch in batches]
    with store.writing(model, method) as db:
        if part:
            if db.execute("SELECT 1 FROM ingested WHERE part = ?", (part,)).fetchone():
                return 0
            db.execute("INSERT INTO ingested VALUES (?)", (part,))
        return sum(_insert(db, rows) for rows in offered)


def ingested(store: Files, model: ModelKey, method: Method) -> set[str]:
    """The names of the parts that were ingested."""
    with store.reading(model, method) as db:
        return set() if db is None else {row[0] for row in db.execute("SELECT part FROM ingested")}


def _insert(db: sqlite3.Connection, rows: list[dict[str, Any]]) -> int:
    """Insert the entries that are missing, within the caller's transaction; the number inserted."""
    fresh: dict[tuple[int, str], dict[str, Any]] = {}
    dead: dict[tuple[int, str], int] = {}
    for row in rows:
        key = (blocks.dataset_number(db, row["dataset"]), row["pair_id"])
        there = db.execute(
            "SELECT id, text, data IS NOT NULL FROM payload WHERE ds = ? AND pair = ?", key
        ).fetchone()
        if there is not None:
            same = there[1] == signed(row["text"])
            if (there[2] and same) or row["reason"] is not None:
                continue
            dead[key] = there[0]
        fresh.setdefault(key, row)
        if row["reason"] is None:
            fresh[key] = row
    if not fresh:
        return 0
    first = blocks.next_serial(db)
    db.executemany("DELETE FROM payload WHERE id = ?", [(serial,) for serial in dead.values()])
    db.executemany(
        "INSERT INTO payload (id, ds, pair, text, reason, data) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (first + k, *key, signed(row["text"]), row["reason"], row["payload"])
            for k, (key, row) in enumerate(fresh.items())
        ],
    )
    summaries = [
        {name: row.get(_SAME.get(name, name)) for name in blocks.ROW.names}
        | {"text": signed(row["text"]), "truncated": bool(row["truncated"])}
        for row in fresh.values()
    ]
    blocks.append(db, first, blocks.batch_of(summaries), list(dead.values()))
    by_variant: dict[str, list[tuple[int, list[float], list[float]]]] = {}
    for k, row in enumerate(fresh.values()):
        # A curve of another version, or one that has only signs, is derived again on demand.
        if row["curve"] is not None and row["variant"] and blocks.is_current(row["variant"]):
            magnitudes = row["curve"] if row["magnitudes"] is None else row["magnitudes"]
            if min(magnitudes) >= 0:
                found = (first + k, row["curve"], magnitudes)
                by_variant.setdefault(row["variant"], []).append(found)
    for params, rows_of_curves in by_variant.items():
        columns = zip(*rows_of_curves, strict=True)
        blocks.append_curves(db, blocks.variant_number(db, params), blocks.curve_rows(*columns))
    return len(fresh)
