"""Maintenance of the store's files: list, delete, verify, repair, compact."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from poslens.attribution.errors import UserError
from poslens.attribution.types import Method
from poslens.cache.keys import unsigned
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import Block
from poslens.cache.storage.codec import (
    DamagedPayload,
    decode,
    identity,
    is_whole,
    pair_fields,
    unpack_fields,
    unpack_floats,
)
from poslens.cache.storage.connections import LOCKS, locked
from poslens.cache.storage.files import Files, ModelKey, open_for_reading, unlink, vacuum
from poslens.cache.storage.index import forget

_ROWS = 256
_NONSENSE = (sqlite3.Error, pa.ArrowException, ValueError, TypeError, LookupError, RecursionError)
"""Exceptions that reading a malformed or malicious file may raise."""


_BESIDE: Mapping[str, tuple[tuple[str, ...], str, Callable[[object], object]]] = MappingProxyType(
    {
        "other": (("kind", "dataset", "item"), "payload", unpack_fields),
        "embedding": (("side", "text"), "vector", unpack_floats),
        "map": (("key",), "points", unpack_floats),
    }
)
"""Tables of results other than attributions: the columns that identify a row, the column with a
checksum, and a function that reads it and returns None if it is damaged."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One model's results under one method. `method` has no curve parameters; `variants` are those
    for which curves are stored. `results` and `failed` also count tests, interventions and
    embeddings. `bytes` includes the log; `last_used` is in seconds since 1970. `problem` is empty,
    or one sentence if the file can't be read."""

    path: Path
    model: ModelKey
    method: Method
    variants: tuple[Mapping[str, Any], ...]
    results: int
    failed: int
    bytes: int
    last_used: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of a verification: the number of results checked, the items whose damaged results
    were removed, and the number of summary blocks that were rebuilt."""

    checked: int
    damaged: tuple[str, ...]
    blocks: int


def listing(store: Files) -> list[StoredFile]:
    """Every file of the store, including damaged ones."""
    if not store.folder.is_dir():
        return []
    places = (
        p
        for folder in store.folder.iterdir()
        if folder.name != LOCKS and folder.is_dir()
        for p in folder.glob("*.db")
    )
    return [file for path in sorted(places) if (file := _stored_file(path)) is not None]


def _stored_file(path: Path) -> StoredFile | None:
    """None if the file is empty, as it is while the first write is running or after it was
    killed."""
    stats = []
    for part in (path, path.with_name(path.name + "-wal")):
        with suppress(OSError):  # missing, or just removed by another process
            stats.append(part.stat())
    size = sum(stat.st_size for stat in stats)
    used = max((max(stat.st_mtime, stat.st_atime) for stat in stats), default=0.0)
    model = ModelKey(path.parent.name, path.parent.name)
    method = Method(path.stem.rpartition("-")[0])
    try:
        with open_for_reading(path) as db:
            answer = dict(db.execute("SELECT key, value FROM meta")) if db is not None else {}
            if db is None or "core" not in answer:
                return None
            name, params = json.loads(answer["method"])
            method = Method(name, params)
            model = ModelKey(answer["model"], answer["fingerprint"], answer.get("about", ""))
            ids = [row[0] for row in db.execute("SELECT DISTINCT variant FROM curve")]
            known = {
                number: params
                for params, number in blocks.variants(db).items()
                if blocks.is_current(params)
            }
            results, failed = np.add(_counts(db), _counts_beside(db)).tolist()
            curves = tuple(json.loads(known[number]) for number in ids if number in known)
            return StoredFile(path, model, method, curves, results, failed, size, used)
    except UserError as error:
        return StoredFile(path, model, method, (), 0, 0, size, used, str(error))
    except _NONSENSE:
        problem = f"{path.name} holds what no PosLens wrote: delete it."
        return StoredFile(path, model, Method(path.stem), (), 0, 0, size, used, problem)


def older_layouts(store: Files) -> str:
    """One sentence about folders with an older layout next to the store's folder, which this
    version doesn't read; empty if there are none."""
    found = store.root.glob("v*") if store.root.is_dir() else ()
    names = sorted(
        f"{store.root.name}/{path.name}"
        for path in found
        if path != store.folder and path.name[1:].isdigit() and any(path.glob("*/*.db"))
    )
    if not names:
        return ""
    return (
        f"{' and '.join(names)} in POSLENS_HOME: results of another layout, which are not read. "
        "Export them with the version that wrote them (`cache export`) and import them here "
        "(`cache import`), or delete the folder."
    )


def models(store: Files) -> list[ModelKey]:
    """The models of the store's files, each from its first readable file. Unreadable files are
    skipped; `listing` reports them."""
    model_keys = []
    for folder in sorted(store.folder.iterdir()) if store.folder.is_dir() else ():
        for path in sorted(folder.glob("*.db")) if folder.name != LOCKS else ():
            answer: dict[str, str] = {}
            with suppress(UserError, *_NONSENSE), open_for_reading(path) as db:
                answer = dict(db.execute("SELECT key, value FROM meta")) if db is not None else {}
            if all(isinstance(answer.get(key), str) for key in ("model", "fingerprint", "about")):
                model_keys.append(ModelKey(answer["model"], answer["fingerprint"], answer["about"]))
                break
    return model_keys


class Failure(NamedTuple):
    """An item without a result, and the reason. `kind` is the kind of result, such as faithfulness;
    empty for an attribution."""

    kind: str
    dataset: str
    item: str
    reason: str


def failures(store: Files, model: ModelKey, method: Method) -> list[Failure]:
    """All failures, attributions first.

    Raises:
        UserError: the file can't be read.
    """
    with store.reading(model, method) as db:
        if db is None:
            return []
        found = db.execute(
            "SELECT '', coalesce(name, ''), pair, reason FROM payload "
            "LEFT JOIN dataset ON dataset.id = ds WHERE reason IS NOT NULL ORDER BY payload.id"
        ).fetchall()
        if "other" in _tables(db):
            found += db.execute(
                "SELECT kind, dataset, item, reason FROM other WHERE reason IS NOT NULL "
                "ORDER BY kind, dataset, item"
            ).fetchall()
    return [Failure(kind.partition(" ")[0], *said) for kind, *said in found]


def _counts(db: sqlite3.Connection) -> tuple[int, int]:
    """Numbers of attributions and their failures, read from the blocks alone."""
    found = [block for _, block in blocks.read_blocks(db) if block is not None]
    dead = np.concatenate([np.zeros(0, np.int64), *(block.dead for block in found)])
    results = failed = 0
    for block in found:
        live = ~np.isin(block.serials, dead)
        bad = block.rows.column("reason").is_valid().to_numpy(zero_copy_only=False)
        results += int((live & ~bad).sum())
        failed += int((live & bad).sum())
    return results, failed


def _counts_beside(db: sqlite3.Connection) -> tuple[int, int]:
    """Numbers of results other than attributions (tests, interventions, embeddings) and of
    failures."""
    tables = _tables(db)
    results = failed = 0
    if "other" in tables:
        results, failed = db.execute("SELECT count(payload), count(reason) FROM other").fetchone()
    if "embedding" in tables:
        results += db.execute("SELECT count(*) FROM embedding").fetchone()[0]
    return results, failed


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master")}


def drop_file(file: StoredFile) -> int:
    """Remove one file, even if it can't be read. Returns the number of bytes freed.

    Raises:
        UserError: it can't be removed.
    """
    unlink(file.path)
    forget(file.path)
    with suppress(OSError):  # not empty, or another process has just written to it
        file.path.parent.rmdir()
    return file.bytes


def verify(
    store: Files,
    model: ModelKey,
    method: Method,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Verified:
    """Check every result and every block against its checksum. Damaged results are removed, so that
    they count as missing; damaged blocks are rebuilt from the results.

    Raises:
        UserError: the file itself can't be read.
    """
    with store.reading(model, method) as db:
        if db is None:
            return Verified(0, (), 0)
        total = db.execute("SELECT count(*) FROM payload").fetchone()[0]
        for table in _BESIDE.keys() & _tables(db):
            total += db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        bad_blocks = sum(1 for _, block in blocks.read_blocks(db) if block is None)
        for number in blocks.variants(db).values():
            bad_blocks += sum(1 for _, part in blocks.read_curves(db, number) if part is None)
    checked, after, damaged = 0, 0, []
    while True:
        with store.reading(model, method) as db:
            part = [] if db is None else list(_payloads(db, after))
        if not part:
            break
        bad = [
            (serial, pair)
            for serial, pair, key, data in part
            if data is not None and not is_whole(data, key)
        ]
        if bad:
            with store.changing(model, method) as db:
                if db is not None:
                    blocks.remove(db, [serial for serial, _ in bad])
            damaged += [pair for _, pair in bad]
        after = part[-1][0]
        checked += len(part)
        report(checked, total)
    if bad_blocks:
        mend(store, model, method)
    for n, bad_items in _verified_beside(store, model, method):
        checked += n
        damaged += bad_items
        report(checked, total)
    return Verified(checked, tuple(damaged), bad_blocks)


def _verified_beside(
    store: Files, model: ModelKey, method: Method
) -> Iterator[tuple[int, list[str]]]:
    """Check tests, interventions, embeddings and maps in portions. Yields how many were checked,
    and which of them were damaged and removed."""
    for table, (columns, stored, opened) in _BESIDE.items():
        names = ", ".join(columns)
        after = ("",) * len(columns)
        while True:
            with store.reading(model, method) as db:
                if db is None or table not in _tables(db):
                    break
                part = db.execute(
                    f"SELECT {stored}, {names} FROM {table} "
                    f"WHERE ({names}) > ({', '.join('?' * len(columns))}) ORDER BY {names} LIMIT ?",
                    (*after, _ROWS),
                ).fetchall()
            if not part:
                break
            bad = [row for row in part if row[0] is not None and opened(row[0]) is None]
            removed: list[str] = []
            if bad:
                # A row that another writer has replaced in the meantime is not the one that was
                # checked.
                where = " AND ".join(f"{column} IS ?" for column in (stored, *columns))
                delete = f"DELETE FROM {table} WHERE {where}"
                with store.changing(model, method) as db:
                    if db is not None:
                        removed = [row[-1] for row in bad if db.execute(delete, row).rowcount]
            yield len(part), removed
            after = part[-1][1:]


def _payloads(db: sqlite3.Connection, after: int) -> Iterator[tuple[int, str, bytes, bytes | None]]:
    for serial, name, pair, text, data in db.execute(
        "SELECT payload.id, coalesce(name, ''), pair, text, data FROM payload "
        "LEFT JOIN dataset ON dataset.id = ds WHERE payload.id > ? ORDER BY payload.id LIMIT ?",
        (after, _ROWS),
    ):
        yield serial, pair, identity(name, pair, unsigned(text)), data


def mend(store: Files, model: ModelKey, method: Method) -> None:
    """Rebuild damaged blocks from the results; results that can't be decoded are removed. Curves
    are derived on demand.

    Raises:
        UserError: the file can't be written.
    """
    path = store.path(model, method)
    with locked(path):
        with store.changing(model, method) as db:
            if db is None:
                return
            found = list(blocks.read_blocks(db))
            bad = [known for known, block in found if block is None]
            if bad:
                whole = [block for _, block in found if block is not None]
                _restore(db, method, whole)
                db.executemany("DELETE FROM block WHERE id = ?", [(known,) for known in bad])
            for number in blocks.variants(db).values():
                parts = blocks.read_curves(db, number)
                gone = [(known,) for known, part in parts if part is None]
                db.executemany("DELETE FROM curve WHERE id = ?", gone)
        forget(path)


def _restore(db: sqlite3.Connection, method: Method, whole: Sequence[Block]) -> None:
    """Add a block with the rows of all results that none of the intact blocks (`whole`) has. It
    supersedes the rows whose results were removed, because the block that recorded this is
    damaged."""
    rows, serials, lost = [], [], []
    live = {row[0] for row in db.execute("SELECT id FROM payload")}
    known = blocks.covered(whole)
    dead = sorted(known - live - {int(serial) for block in whole for serial in block.dead})
    for serial in sorted(live - known):
        dataset, pair, text, reason, data = db.execute(
            "SELECT coalesce(name, ''), pair, text, reason, data FROM payload "
            "LEFT JOIN dataset ON dataset.id = ds WHERE payload.id = ?",
            (serial,),
        ).fetchone()
        row: dict[str, object] = dict.fromkeys(blocks.ROW.names)
        row |= {"dataset": dataset, "pair": pair, "text": text, "truncated": False}
        if data is None:
            row["reason"] = reason or "unknown"
        else:
            try:
                key = identity(dataset, pair, unsigned(text))
                row |= pair_fields(data, key)
                result = decode(data, "", method, pair, key)
            except DamagedPayload:
                lost.append(serial)
                continue
            row |= {
                "score": result.score,
                "tokens": result.document.n_tokens_full,
                "truncated": result.document.truncated,
            }
        rows.append(row)
        serials.append(serial)
    blocks.remove(db, lost)
    batch = blocks.batch_of(rows)
    if rows:
        batch = blocks.with_offsets(batch, np.array(serials, dtype=np.int64))
    if rows or dead:
        blocks.append(db, 0, batch, dead)


def compact(store: Files, model: ModelKey, method: Method) -> int:
    """Merge all blocks, drop superseded rows and release free space. Returns the number of bytes
    freed.

    Raises:
        UserError: the file can't be written, or there is no disk space for a second copy.
    """
    path = store.path(model, method)
    mend(store, model, method)
    with locked(path):
        before = _size(path)
        with store.changing(model, method) as db:
            if db is None:
                return 0
            blocks.merge_all(db)
            db.execute("UPDATE meta SET value = hex(randomblob(8)) WHERE key = 'epoch'")
        vacuum(path)
        forget(path)
        return before - _size(path)


def _size(path: Path) -> int:
    return sum(
        part.stat().st_size for part in (path, path.with_name(path.name + "-wal")) if part.is_file()
    )
