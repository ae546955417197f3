"""Export and import of results other than attributions (embeddings, maps, test results) as rows.

Payloads are copied unchanged, each with the checksum computed by its producer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from poslens.attribution.errors import printable
from poslens.attribution.types import Method
from poslens.cache.exchange.parquet_file import ROW
from poslens.cache.storage.codec import has_whole_fields, unpack_floats
from poslens.cache.storage.files import Files, ModelKey

OTHER, EMBEDDING, MAP = "other: ", "embedding: ", "map"
"""Values of the column `kind`. The first two are prefixes, followed by the kind's name or by the
side (query or document)."""


def _text(column: str) -> str:
    """SQL that casts a column to text: SQLite stores any type in any column."""
    return f"CAST({column} AS TEXT)"


def _bytes(column: str) -> str:
    return f"CAST({column} AS BLOB)"


_QUERIES = {
    "other": f"SELECT '{OTHER}' || kind, {_text('dataset')}, {_text('item')}, {_text('text')}, "
    f"{_bytes('payload')}, {_text('reason')} FROM other",
    "embedding": f"SELECT '{EMBEDDING}' || side, '', {_text('text')}, '', {_bytes('vector')}, NULL "
    "FROM embedding",
    "map": f"SELECT '{MAP}', '', {_text('key')}, '', {_bytes('points')}, NULL FROM map",
}
_COLUMNS = ("kind", "dataset", "pair_id", "text", "payload", "reason")


def rows(
    store: Files, model: ModelKey, method: Method, size: int = 1000
) -> Iterator[pa.RecordBatch]:
    """Everything in the file except attributions and their failures, as rows (schema ROW)."""
    with store.reading(model, method) as db:
        if db is None:
            return
        known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        for table in (name for name in _QUERIES if name in known):
            cursor = db.execute(_QUERIES[table])
            while found := cursor.fetchmany(size):
                yield _batch(found)


def _batch(found: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = dict(zip(_COLUMNS, zip(*found, strict=True), strict=True))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(len(found), field.type)
            for field in ROW
        ],
        schema=ROW,
    )


def damaged(batch: pa.RecordBatch) -> str:
    """A description of the first row whose payload does not match its checksum; empty if all
    match."""
    for row in batch.select(list(_COLUMNS)).to_pylist():
        if not _is_whole(row):
            names = (str(row[name] or "")[:80] for name in ("kind", "dataset", "pair_id"))
            return printable(" ".join(names)).strip() or "nothing"
    return ""


def _is_whole(row: dict[str, Any]) -> bool:
    payload = row["payload"]
    if payload is None:
        return row["reason"] is not None
    if (row["kind"] or "").startswith(OTHER):
        return has_whole_fields(payload)
    return unpack_floats(payload) is not None


def add(db: sqlite3.Connection, batch: pa.RecordBatch) -> tuple[int, int]:
    """Add the rows that the file lacks, within the caller's transaction. Returns the number of rows
    added, and the number skipped because the file has a result of the same item for another
    text."""
    from poslens.cache.kinds import embeddings
    from poslens.cache.storage import results  # both import torch, not needed for reading

    added = conflicts = 0
    db.execute(results.SCHEMA)
    for statement in embeddings.SCHEMA:
        db.execute(statement)
    for row in batch.select(list(_COLUMNS)).to_pylist():
        kind, payload = row["kind"], row["payload"]
        before = db.total_changes
        if kind == MAP:
            db.execute("INSERT OR IGNORE INTO map VALUES (?, ?)", (row["pair_id"], payload))
        elif kind.startswith(EMBEDDING):
            key = (kind.removeprefix(EMBEDDING), row["pair_id"], payload)
            # All vectors of a model have the same length.
            known = db.execute("SELECT length(vector) FROM embedding LIMIT 1").fetchone()
            if known is not None and known[0] != len(payload):
                conflicts += 1
                continue
            db.execute("INSERT OR IGNORE INTO embedding VALUES (?, ?, ?)", key)
        elif kind.startswith(OTHER):
            conflicts += _add_other(db, kind.removeprefix(OTHER), row)
        added += db.total_changes - before
    return added, conflicts


def _add_other(db: sqlite3.Connection, kind: str, row: dict[str, Any]) -> bool:
    """Insert one row. Returns True if it was skipped because its text differs from the stored
    one."""
    item = (kind, row["dataset"], row["pair_id"])
    found = db.execute(
        "SELECT text, payload IS NULL FROM other WHERE kind = ? AND dataset = ? AND item = ?", item
    ).fetchone()
    if found is not None and found[0] != row["text"]:
        return True
    # A result replaces a failure.
    if found is None or (found[1] and row["payload"] is not None):
        db.execute(
            "INSERT OR REPLACE INTO other VALUES (?, ?, ?, ?, ?, ?)",
            (*item, row["text"], row["payload"], row["reason"]),
        )
    return False
