"""Rows of the store's files: the result of an item, or the reason why it has none.

All kinds of results share one table, whose rows are identified by kind, data set and item. A new
row of an item replaces the one before and has a higher id. Summaries and curves of attributions are
also appended to blocks (blocks.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from poslens.attribution.types import N_BINS, Array, Method
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import SUMMARY, Ids
from poslens.cache.storage.codec import has_whole_fields, identity, is_whole, unpack_floats
from poslens.cache.storage.encoded import Computed

ATTRIBUTION, OTHER, EMBEDDING, MAP = "attribution", "other: ", "embedding: ", "map"
"""Kinds of results. The second and third are prefixes, followed by the kind's name or by the side
(query or document)."""

SEARCH, ENCODING_TIME = "search", "encoding_time"
"""Names of kinds with one row for a whole corpus, next to the results of its items: the state of an
unfinished search, and how long a model encodes a document."""

ADDITIONAL = (OTHER + SEARCH, OTHER + ENCODING_TIME)
"""Kinds that are not counted as results."""

_SUMMARY = [field for field in blocks.schema_of(SUMMARY) if field.name not in ("id", "text")]
ROW = pa.schema(
    [
        pa.field("kind", pa.string()),
        *_SUMMARY[:2],
        pa.field("text", pa.string()),
        *_SUMMARY[2:],
        pa.field("variant", pa.string()),
        pa.field("curve", pa.list_(pa.float32(), N_BINS)),
        pa.field("magnitudes", pa.list_(pa.float32(), N_BINS)),
        pa.field("payload", pa.binary()),
    ]
)
"""A row as it is exported and imported: `pair_id` is the item, `text` a fingerprint of everything
the result depends on, `variant` the curve's parameters as JSON. A failure has a `reason` and no
score, curve or payload. `magnitudes` is null if the curve has no signs and so equals its
magnitudes. Rows of other kinds than attributions have no summary."""

_AT_ONCE = 500


class Key(NamedTuple):
    """Identifies an item: data set, id within it, and fingerprint of everything its result depends
    on."""

    dataset: str
    item: str
    fingerprint: str


class StoredRow(NamedTuple):
    """A stored row: its id, and the reason or the payload."""

    id: int
    reason: str | None
    payload: bytes | None


def select(db: sqlite3.Connection, kind: str, keys: Iterable[Key]) -> dict[Key, StoredRow]:
    """The stored rows of those of `keys` that have one."""
    rows: dict[Key, StoredRow] = {}
    items: dict[str, list[str]] = {}
    for dataset, item, _ in keys:
        items.setdefault(dataset, []).append(item)
    for dataset, asked in items.items():
        # In portions: a corpus is processed block by block, and each block would otherwise read all
        # stored vectors.
        for start in range(0, len(asked), _AT_ONCE):
            portion = asked[start : start + _AT_ONCE]
            for item, text, *row in db.execute(
                "SELECT item, text, id, reason, payload FROM result WHERE kind = ? "
                f"AND dataset = ? AND item IN ({','.join('?' * len(portion))})",
                (kind, dataset, *portion),
            ):
                rows[Key(dataset, item, text)] = StoredRow(*row)
    return rows


def insert(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> Ids:
    """Add rows of kind, data set, item, text, reason and payload, within the caller's transaction.
    Returns their ids [n]."""
    db.executemany(
        "INSERT OR REPLACE INTO result (kind, dataset, item, text, reason, payload) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        rows,
    )
    last = db.execute("SELECT last_insert_rowid()").fetchone()[0]
    return np.arange(last + 1 - len(rows), last + 1, dtype=np.int64)


_INSERTED = ("kind", "dataset", "pair_id", "text", "reason")


def append(db: sqlite3.Connection, rows: pa.RecordBatch, payloads: Sequence[bytes | None]) -> None:
    """Add rows (schema ROW, whose column `payload` is not read) with their payloads [n], and with
    the summaries and curves of attributions, within the caller's transaction."""
    columns = [rows.column(name).to_pylist() for name in _INSERTED]
    ids = insert(db, list(zip(*columns, payloads, strict=True)))
    attributions = np.array([kind == ATTRIBUTION for kind in columns[0]], np.bool_)
    if not attributions.all():
        ids, rows = ids[attributions], rows.filter(pa.array(attributions))
    if rows.num_rows:
        blocks.append(db, SUMMARY, _summary(ids, rows))
    variants, curves, sizes = (rows.column(name) for name in ("variant", "curve", "magnitudes"))
    names = np.array(variants.to_pylist(), object)
    for variant in {name for name in names.tolist() if name is not None}:
        chosen = np.flatnonzero((names == variant) & _valid(curves))
        values = magnitudes = blocks.values_of(curves)[chosen]
        if (has_signs := _valid(sizes)[chosen]).any():
            magnitudes = np.where(has_signs[:, None], blocks.values_of(sizes)[chosen], values)
        # A signed curve without magnitudes is derived again on demand.
        if (negative := (magnitudes < 0).any(1)).any():
            same, chosen, values = magnitudes is values, chosen[~negative], values[~negative]
            magnitudes = values if same else magnitudes[~negative]
        blocks.append_curves(db, variant, ids[chosen], values, magnitudes)


def _valid(column: pa.Array) -> np.ndarray:
    """Which values of a column are not null [n]."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return blocks.numbers(column.is_valid(), False)


def _summary(ids: Ids, rows: pa.RecordBatch) -> pa.RecordBatch:
    schema = blocks.schema_of(SUMMARY)
    columns = {name: rows.column(name) for name in schema.names if name not in ("id", "text")}
    digits = bytes.fromhex("".join(rows.column("text").to_pylist()))
    texts = np.frombuffer(digits, ">i8").astype(np.int64)  # as `keys.signed`
    columns |= {"id": pa.array(ids), "text": pa.array(texts)}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def attribution_rows(method: Method, computed: Computed) -> pa.RecordBatch:
    """Encoded results, followed by failures, as rows (schema ROW, without the column `payload`)."""
    failures, everything = computed.failures, computed.all_pairs
    n = len(computed.pairs)
    done, gap = np.arange(len(everything)) < n, [None] * len(failures)
    spans = [pair.evidence for pair in everything]

    def padded(values: Array) -> Array:
        return np.concatenate([values, np.zeros((len(failures), N_BINS), np.float32)])

    signs = computed.magnitudes is not computed.curves
    columns: dict[str, Any] = {
        "kind": [ATTRIBUTION] * len(everything),
        "dataset": [pair.dataset for pair in everything],
        "pair_id": [pair.pair_id for pair in everything],
        "text": [text_fingerprint(pair) for pair in everything],
        "language": [pair.language for pair in everything],
        "domain": [pair.domain for pair in everything],
        "document_tokens": [pair.document_tokens for pair in everything],
        "tokens": [*computed.tokens.tolist(), *gap],
        "evidence_start": [span.start if span else None for span in spans],
        "evidence_end": [span.end if span else None for span in spans],
        "characters": [len(pair.document) for pair in everything],
        "score": [*computed.scores.tolist(), *gap],
        "truncated": [*computed.truncated.tolist(), *([False] * len(failures))],
        "reason": [*([None] * n), *(reason for _, reason in failures)],
        "variant": [*([blocks.curve_name(method)] * n), *gap],
        "curve": blocks.curve_column(padded(computed.curves), done),
        "magnitudes": blocks.curve_column(padded(computed.magnitudes), done)
        if signs
        else pa.nulls(len(everything), ROW.field("magnitudes").type),
    }
    schema = pa.schema([field for field in ROW if field.name in columns])
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def is_intact(kind: str, dataset: str, item: str, text: str, payload: object) -> bool:
    """Whether a payload matches the checksum that its producer computed."""
    if kind == ATTRIBUTION:
        return is_whole(payload, identity(dataset, item, text))
    if kind.startswith(OTHER):
        return isinstance(payload, bytes) and has_whole_fields(payload)
    return unpack_floats(payload) is not None


def portion(db: sqlite3.Connection, after: int, n: int) -> list[tuple[Any, ...]]:
    """Up to `n` rows with ids above `after`: id, kind, data set, item, text, reason, payload."""
    # Cast, because SQLite stores any type in any column.
    return db.execute(
        "SELECT id, CAST(kind AS TEXT), CAST(dataset AS TEXT), CAST(item AS TEXT), "
        "CAST(text AS TEXT), CAST(reason AS TEXT), CAST(payload AS BLOB) FROM result "
        "WHERE id > ? ORDER BY id LIMIT ?",
        (after, n),
    ).fetchall()
