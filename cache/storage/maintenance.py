"""Maintenance of the store's files: list, delete, verify, repair, compact."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from poslens.attribution.errors import UserError
from poslens.attribution.types import Method
from poslens.cache.keys import signed
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import SUMMARY
from poslens.cache.storage.codec import DamagedPayload, identity, summary_fields
from poslens.cache.storage.connections import LOCKS, locked
from poslens.cache.storage.files import Files, ModelKey, open_for_reading, unlink, vacuum
from poslens.cache.storage.index import forget_below
from poslens.cache.storage.rows import ADDITIONAL, ATTRIBUTION, OTHER, is_intact, portion

_ROWS = 256
_NONSENSE = (sqlite3.Error, pa.ArrowException, ValueError, TypeError, LookupError, RecursionError)
"""Exceptions that reading a malformed or malicious file may raise."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One model's results under one method. `method` has no curve parameters; `variants` are those
    for which curves are stored. `results` and `failed` also count tests, interventions,
    embeddings and maps, but nothing that is `ADDITIONAL`. `datasets` has the number of results and
    failures by data set; embeddings and maps belong to none. `bytes` includes the log; `last_used`
    is in seconds since 1970. `problem` is empty, or one sentence if the file can't be read."""

    path: Path
    model: ModelKey
    method: Method
    variants: tuple[Mapping[str, Any], ...]
    results: int
    failed: int
    bytes: int
    last_used: float
    problem: str = ""
    datasets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of a verification: the number of results checked, the items whose damaged results
    were removed, and the number of summary blocks that were rebuilt."""

    checked: int
    damaged: tuple[str, ...]
    blocks: int


def listing(store: Files) -> list[StoredFile]:
    """Every file of the store, including damaged ones."""
    return [file for path in _databases(store) if (file := _stored_file(path)) is not None]


def _databases(store: Files) -> list[Path]:
    folders = sorted(store.folder.iterdir()) if store.folder.is_dir() else ()
    return [path for each in folders if each.name != LOCKS for path in sorted(each.glob("*.db"))]


def _stored_file(path: Path) -> StoredFile | None:
    """The description of a file; None if the file is empty, as it is during the first write or if
    that was killed."""
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
            meta = dict(db.execute("SELECT key, value FROM meta")) if db is not None else {}
            if db is None or "core" not in meta:
                return None
            name, params = json.loads(meta["method"])
            method = Method(name, params)
            model = ModelKey(meta["model"], meta["fingerprint"], meta.get("about", ""))
            current = blocks.current_names()
            curves = tuple(
                json.loads(name)
                for name in blocks.names(db)
                if name in current and name.startswith("{")
            )
            counts = db.execute(
                "SELECT dataset, count(*), count(reason) FROM result WHERE kind NOT IN (?, ?) "
                "GROUP BY dataset ORDER BY dataset",
                ADDITIONAL,
            ).fetchall()
            datasets = {str(name): n for name, n, _ in counts if name}
            failed = sum(failed for _, _, failed in counts)
            results = sum(n for _, n, _ in counts) - failed
            return StoredFile(
                path, model, method, curves, results, failed, size, used, datasets=datasets
            )
    except UserError as error:
        return StoredFile(path, model, method, (), 0, 0, size, used, str(error))
    except _NONSENSE:
        problem = f"{path.name} was not written by PosLens: delete it."
        return StoredFile(path, model, Method(path.stem), (), 0, 0, size, used, problem)


def older_layouts(store: Files) -> str:
    """One sentence about folders with an older layout next to the store's folder, which this
    version doesn't read; empty if there are none."""
    layouts = store.root.glob("v*") if store.root.is_dir() else ()
    names = sorted(
        f"{store.root.name}/{path.name}"
        for path in layouts
        if path != store.folder and path.name[1:].isdigit() and any(path.glob("*/*.db"))
    )
    if not names:
        return ""
    return (
        f"POSLENS_HOME has results in another layout ({' and '.join(names)}) that PosLens can't "
        "read. Export them with the version that wrote them (`cache export`) and import them here "
        "(`cache import`), or delete the folder."
    )


def models(store: Files) -> list[ModelKey]:
    """The models of the store's files, each from its first readable file. Unreadable files are
    skipped; `listing` reports them."""
    model_keys: dict[str, ModelKey] = {}
    for path in _databases(store):
        if path.parent.name in model_keys:
            continue
        meta: dict[str, str] = {}
        with suppress(UserError, *_NONSENSE), open_for_reading(path) as db:
            meta = dict(db.execute("SELECT key, value FROM meta")) if db is not None else {}
        if all(isinstance(meta.get(key), str) for key in ("model", "fingerprint", "about")):
            key = ModelKey(meta["model"], meta["fingerprint"], meta["about"])
            model_keys[path.parent.name] = key
    return list(model_keys.values())


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
        rows = db.execute(
            "SELECT kind, dataset, item, reason FROM result WHERE reason IS NOT NULL "
            "ORDER BY kind != ?, id",
            (ATTRIBUTION,),
        ).fetchall()
    return [
        Failure("" if kind == ATTRIBUTION else kind.removeprefix(OTHER).partition(" ")[0], *row)
        for kind, *row in rows
    ]


def drop_file(file: StoredFile) -> int:
    """Remove one file, even if it can't be read. Returns the number of bytes freed.

    Raises:
        UserError: it can't be removed.
    """
    unlink(file.path)
    forget_below(file.path)
    with suppress(OSError):  # not empty, or another process has just written to it
        file.path.parent.rmdir()
    return file.bytes


def drop_results(store: Files, file: StoredFile, dataset: str = "") -> int:
    """Remove the results of a data set and release their space. A file without other results is
    removed, and so is any file, even if it can't be read, without a `dataset`. Returns the number
    of bytes freed.

    Raises:
        UserError: the file can't be read or written, or there is no disk space for a second copy.
    """
    if not dataset:
        return drop_file(file)
    with locked(file.path):
        before = _size(file.path)
        with store.reading(file.model, file.method) as db:
            rows = [] if db is None else db.execute("SELECT id, dataset FROM result").fetchall()
        dropped = [number for number, name in rows if name == dataset]
        if len(dropped) == len(rows):
            return drop_file(file)
        repair(store, file.model, file.method, dropped)
        vacuum(file.path)
        return before - _size(file.path)


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
        total = db.execute("SELECT count(*) FROM result").fetchone()[0]
        bad_blocks = sum(
            rows is None for name in blocks.names(db) for _, rows in blocks.read(db, name)
        )
    checked, after = 0, 0
    damaged: list[int] = []
    while True:
        with store.reading(model, method) as db:
            rows = [] if db is None else portion(db, after, _ROWS)
        if not rows:
            break
        for number, kind, dataset, item, text, _, payload in rows:
            if payload is not None and not is_intact(kind, dataset, item, text, payload):
                damaged.append(number)
        after = rows[-1][0]
        checked += len(rows)
        report(checked, total)
    removed = repair(store, model, method, damaged) if damaged or bad_blocks else []
    return Verified(checked, tuple(removed), bad_blocks)


def repair(store: Files, model: ModelKey, method: Method, damaged: Sequence[int] = ()) -> list[str]:
    """Remove the results with the ids `damaged` and rewrite all blocks, without rows of replaced
    results. The summaries of damaged blocks are restored from the results, and results that can't
    be decoded are removed; curves are derived on demand. Returns the items whose results were
    removed.

    Raises:
        UserError: the file can't be written.
    """
    path = store.path(model, method)
    with locked(path):
        with store.changing(model, method) as db:
            if db is None:
                return []
            # A result that another writer has replaced in the meantime has another id.
            removed = _removed(db, damaged)
            attributions = db.execute("SELECT id FROM result WHERE kind = ?", (ATTRIBUTION,))
            live = np.array([number for (number,) in attributions], np.int64)
            intact = [rows for _, rows in blocks.read(db, SUMMARY) if rows is not None]
            lacking = np.setdiff1d(live, [n for rows in intact for n in rows["id"].to_pylist()])
            restored, unreadable = _restored(db, lacking.tolist())
            removed += _removed(db, unreadable)
            blocks.rewrite(db, live, restored)
        forget_below(path)
    return removed


def _removed(db: sqlite3.Connection, ids: Sequence[int]) -> list[str]:
    """Remove the results with these ids that are still there. Returns their items."""
    delete = "DELETE FROM result WHERE id = ? RETURNING CAST(item AS TEXT)"
    return [item for number in ids for (item,) in db.execute(delete, (number,))]


def _restored(db: sqlite3.Connection, ids: Sequence[int]) -> tuple[list[pa.RecordBatch], list[int]]:
    """The summaries of these results, and the ids of those that can't be decoded."""
    schema = blocks.schema_of(SUMMARY)
    summaries, unreadable = [], []
    for number in ids:
        ((_, _, dataset, item, text, reason, payload),) = portion(db, number - 1, 1)
        try:
            row = {"id": number, "dataset": dataset, "pair_id": item, "text": signed(text)}
            if reason is None:
                row |= summary_fields(payload, identity(dataset, item, text))
            row = {"truncated": False, "reason": reason, **row}
            summaries.append(pa.RecordBatch.from_pylist([row], schema))
        except (DamagedPayload, pa.ArrowException, ValueError, TypeError):
            unreadable.append(number)
    return summaries, unreadable


def compact(store: Files, model: ModelKey, method: Method) -> int:
    """Merge all blocks, drop superseded rows and release free space. Returns the number of bytes
    freed.

    Raises:
        UserError: the file can't be written, or there is no disk space for a second copy.
    """
    path = store.path(model, method)
    with locked(path):
        if not path.is_file():
            return 0
        before = _size(path)
        repair(store, model, method)
        vacuum(path)
        return before - _size(path)


def _size(path: Path) -> int:
    return sum(
        part.stat().st_size for part in (path, path.with_name(path.name + "-wal")) if part.is_file()
    )
