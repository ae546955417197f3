"""Results of any kind, kept in the store's files: tests and interventions beside attributions.

A result belongs to a kind, a model, a method and an item (a pair, a triple of texts). What it
depends on besides is in the item's fingerprint, so that a changed text is a miss; a result is
there whole or not at all, and a damaged one counts as missing.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from attribution.errors import Stopped, UserError
from attribution.types import Method, TextPair
from cache.fingerprint import text_fingerprint
from cache.precompute import Progress
from cache.store import ModelKey, Store

Item = TypeVar("Item")
T = TypeVar("T")
Fields = dict[str, Any]
Key = tuple[str, str, str]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS other (
    kind TEXT NOT NULL, dataset TEXT NOT NULL, item TEXT NOT NULL, text TEXT NOT NULL,
    payload BLOB, reason TEXT, PRIMARY KEY (kind, dataset, item)) WITHOUT ROWID
"""


def pair_key(pair: TextPair) -> Key:
    """Data set, pair, and a fingerprint of its texts and its evidence."""
    span = pair.evidence
    evidence = f"{span.start}-{span.end}" if span else ""
    return pair.dataset, pair.pair_id, f"{text_fingerprint(pair)}:{evidence}"


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """What is stored of a set of items: results by item id, in the order asked for, and why
    others failed."""

    results: dict[str, T]
    failed: dict[str, str]


class Results(Generic[Item, T]):
    """Results of one kind below one folder. Any number of threads and processes may use it.

    `key` names an item (data set, id, fingerprint of all that its result depends on); `pack`
    turns a result into JSON values and `unpack` turns them back.
    """

    def __init__(
        self,
        root: Path,
        kind: str,
        *,
        key: Callable[[Item], Key],
        pack: Callable[[T], Fields],
        unpack: Callable[[Fields], T],
    ) -> None:
        # Files, locks and sentences for what a disk can do wrong are the store's.
        self._files = Store(root)
        self.kind = kind
        self._key, self._pack, self._unpack = key, pack, unpack

    def get(self, model: ModelKey, method: Method, item: Item) -> T | None:
        """The stored result, or None where there is none for this very item."""
        with self._reading(model, method) as db:
            row = (
                db
                and db.execute(
                    "SELECT payload FROM other "
                    "WHERE kind = ? AND dataset = ? AND item = ? AND text = ?",
                    (self.kind, *self._key(item)),
                ).fetchone()
            )
        return self._read(row[0]) if row else None

    def select(self, model: ModelKey, method: Method, items: Sequence[Item]) -> Stored[T]:
        """All that is stored of `items`, in one reading."""
        rows = self._rows(model, method)
        results: dict[str, T] = {}
        failed: dict[str, str] = {}
        for item in items:
            key = self._key(item)
            payload, reason = rows.get(key, (None, None))
            if reason is not None:
                failed[key[1]] = reason
            elif (found := self._read(payload)) is not None:
                results[key[1]] = found
        return Stored(results, failed)

    def put(self, model: ModelKey, method: Method, results: Sequence[tuple[Item, T]]) -> None:
        """Store results, all or none; what was there of an item is replaced.

        Raises:
            UserError: the folder cannot be written (rights, a full disk).
        """
        rows = [(item, with_checksum(self._pack(result)), None) for item, result in results]
        self._put(model, method, rows)

    def put_failures(
        self, model: ModelKey, method: Method, failures: Sequence[tuple[Item, str]]
    ) -> None:
        """Store why items have no result, so that a resumed run does not try them again."""
        self._put(model, method, [(item, None, reason) for item, reason in failures])

    def missing(
        self, model: ModelKey, method: Method, items: Sequence[Item], *, retry: bool = False
    ) -> list[Item]:
        """The items with neither a result nor, unless `retry`, a stored failure."""
        rows = self._rows(model, method)
        stored = {
            key
            for key, (payload, reason) in rows.items()
            if (reason is not None and not retry) or checked(payload) is not None
        }
        return [item for item in items if self._key(item) not in stored]

    def run(
        self,
        model: ModelKey,
        method: Method,
        items: Sequence[Item],
        compute: Callable[[Item], T],
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
        retry_failed: bool = False,
    ) -> Progress:
        """Compute and store what is missing of `items`, one by one; stops between them (or within
        one whose `compute` raises Stopped), resumes anywhere. `turn` is entered for each item.

        A UserError of `compute` is that item's failure.

        Raises:
            UserError: the store cannot be written; what was stored before stays.
        """
        todo = self.missing(model, method, items, retry=retry_failed)
        already = len(items) - len(todo)
        computed = failed = 0
        started = time.perf_counter()

        def progress(stopped: bool = False) -> Progress:
            seconds = time.perf_counter() - started
            return Progress(len(items), already + computed, computed, failed, seconds, stopped)

        on_progress(progress())
        for item in todo:
            if should_stop():
                return progress(stopped=True)
            result, reason = None, ""
            try:
                with turn():
                    result = compute(item)
            except Stopped:
                return progress(stopped=True)
            except UserError as error:
                reason = str(error)
            if result is None:
                self.put_failures(model, method, [(item, reason)])
                failed += 1
            else:
                self.put(model, method, [(item, result)])
            computed += 1
            on_progress(progress())
        return progress()

    # -- rows ----------------------------------------------------------------------------------

    def _read(self, payload: bytes | None) -> T | None:
        fields = checked(payload)
        return None if fields is None else self._unpack(fields)

    def _rows(self, model: ModelKey, method: Method) -> dict[Key, tuple[bytes | None, str | None]]:
        """Payload and reason by data set, item and text."""
        with self._reading(model, method) as db:
            found = () if db is None else db.execute(
                "SELECT dataset, item, text, payload, reason FROM other WHERE kind = ?",
                (self.kind,),
            )  # fmt: skip
            return {(row[0], row[1], row[2]): (row[3], row[4]) for row in found}

    def _put(
        self,
        model: ModelKey,
        method: Method,
        rows: Sequence[tuple[Item, bytes | None, str | None]],
    ) -> None:
        packed = [(self.kind, *self._key(item), payload, why) for item, payload, why in rows]
        with self._files.writing(model, method) as db:
            db.execute(_SCHEMA)
            db.executemany("INSERT OR REPLACE INTO other VALUES (?, ?, ?, ?, ?, ?)", packed)

    @contextmanager
    def _reading(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection | None]:
        """The file, or None where it has no table of these yet."""
        with self._files.reading(model, method) as db:
            known = (
                db is not None
                and db.execute("SELECT 1 FROM sqlite_master WHERE name = 'other'").fetchone()
            )
            yield db if known else None


def with_checksum(fields: Fields) -> bytes:
    """JSON of `fields` behind its CRC-32."""
    # A float32 written as the float64 it equals reads back bit for bit.
    text = json.dumps(fields).encode()
    return zlib.crc32(text).to_bytes(4, "big") + text


def checked(payload: bytes | None) -> Fields | None:
    """The fields; None where nothing is stored or it is not what was stored."""
    if payload is None or zlib.crc32(payload[4:]).to_bytes(4, "big") != payload[:4]:
        return None
    return json.loads(payload[4:])
