"""Results of any kind, kept in the store's files: tests and interventions beside attributions.

A result belongs to a kind, a model, a method and an item (a pair, a triple of texts). What it
depends on besides is in the item's fingerprint, so that a changed text is a miss; a result is
there whole or not at all, and a damaged one counts as missing.
"""

from __future__ import annotations

import hashlib
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
from cache.jobs.attributions import Progress
from cache.jobs.claims import Claims
from cache.keys import text_fingerprint
from cache.storage.decoded import Decoded
from cache.storage.store import ModelKey, Store

Item = TypeVar("Item")
T = TypeVar("T")
Fields = dict[str, Any]
Key = tuple[str, str, str]

_WAIT_S = 0.5  # between looks at what another job is computing
_AT_ONCE = 500
_DECODED = Decoded(32 << 20)

# Somebody else may have written it, all checksums right: it counts as missing then.
_NONSENSE = (
    UserError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    zlib.error,
)


def forget_decoded() -> None:
    """Keep nothing in memory of what this process decoded; it is decoded again when it is read."""
    _DECODED.clear()


SCHEMA = """
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
        """All that is stored of `items`. Only what this process has not read before is decoded, so
        results must be values."""
        keys = [self._key(item) for item in items]
        rows = self._rows(model, method, keys)
        place = self._place(model, method)
        results: dict[str, T] = {}
        failed: dict[str, str] = {}
        for key in keys:
            payload, reason = rows.get(key, (None, None))
            if reason is not None:
                failed[key[1]] = reason
            elif payload is not None:
                found = _DECODED.read((place, key), payload, self._read)
                if found is not None:
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
        keys = [self._key(item) for item in items]
        place = self._place(model, method)
        stored = {
            key
            for key, (payload, reason) in self._rows(model, method, keys).items()
            if (reason is not None and not retry)
            or (
                payload is not None and _DECODED.read((place, key), payload, self._read) is not None
            )
        }
        return [item for item, key in zip(items, keys, strict=True) if key not in stored]

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
        portion: int = 1,
        prepare: Callable[[Sequence[Item]], None] = lambda items: None,
    ) -> Progress:
        """Compute and store what is missing of `items`, one by one; stops between them (or within
        one whose `compute` raises Stopped), resumes anywhere. `turn` is entered for each item.

        Other runs of this host on the same results share the work: what one of them is computing is
        left to it, and taken over if it dies. Items are claimed by the `portion`; `prepare` is told
        which, before the first of them is computed. A UserError of `compute` is that item's
        failure; with `retry_failed` each run tries a failed item once.

        Raises:
            UserError: the store cannot be written; what was stored before stays.
        """
        started = time.perf_counter()
        computed = failed = done = 0
        tried: set[str] = set()

        def progress(stopped: bool = False) -> Progress:
            seconds = time.perf_counter() - started
            return Progress(len(items), done, computed, failed, seconds, stopped)

        def missing(of: Sequence[Item]) -> list[Item]:
            """What of these is still to do; the rest counts as done."""
            nonlocal done
            found = self.missing(model, method, of, retry=retry_failed)
            found = [item for item in found if self._claim(item) not in tried]
            done += len(of) - len(found)
            return found

        def mine(todo: Sequence[Item], left: list[Item]) -> Iterator[Item]:
            """Items without what other runs have or had; what they are computing goes to `left`."""
            for first in range(0, len(todo), portion):
                asked = todo[first : first + portion]
                free = claims.take([self._claim(item) for item in asked])
                left += [item for item in asked if self._claim(item) not in free]
                taken = [item for item in asked if self._claim(item) in free]
                if claims.contended:
                    taken = missing(taken)
                prepare(taken)
                yield from taken
                claims.release(free)

        todo = missing(items)
        on_progress(progress())
        if not todo:
            return progress()
        with Claims(self._claims_folder(model, method)) as claims:
            # Listed again: from here on, others that finish in between are noticed.
            todo = missing(todo)
            while todo:
                left: list[Item] = []
                before = computed
                for item in mine(todo, left):
                    if should_stop():
                        return progress(stopped=True)
                    try:
                        with turn():
                            result = compute(item)
                    except Stopped:
                        return progress(stopped=True)
                    except UserError as error:
                        self.put_failures(model, method, [(item, str(error))])
                        tried.add(self._claim(item))
                        failed += 1
                    else:
                        self.put(model, method, [(item, result)])
                    done, computed = done + 1, computed + 1
                    on_progress(progress())
                todo = missing(left)
                if left:
                    on_progress(progress())
                if todo and computed == before:
                    if should_stop():
                        return progress(stopped=True)
                    time.sleep(_WAIT_S)
        return progress()

    def _place(self, model: ModelKey, method: Method) -> tuple[str, str, ModelKey, str]:
        return str(self._files.root), self.kind, model, repr(method)

    def _claim(self, item: Item) -> str:
        return "\0".join(self._key(item))

    def _claims_folder(self, model: ModelKey, method: Method) -> Path:
        """Apart from the claims of attributions of the same method, whose jobs pages count."""
        name = hashlib.sha256(f"{self.kind}\0{method.core}".encode()).hexdigest()[:16]
        return self._files.root / "claims" / f"{model.fingerprint}-{name}"

    # -- rows ----------------------------------------------------------------------------------

    def _read(self, payload: bytes | None) -> T | None:
        fields = checked(payload)
        if fields is None:
            return None
        try:
            return self._unpack(fields)
        except _NONSENSE:
            return None

    def _rows(
        self, model: ModelKey, method: Method, keys: Sequence[Key]
    ) -> dict[Key, tuple[bytes | None, str | None]]:
        """Payload and reason of those of `keys` that have a row."""
        found: dict[Key, tuple[bytes | None, str | None]] = {}
        by_dataset: dict[str, list[str]] = {}
        for dataset, item, _ in keys:
            by_dataset.setdefault(dataset, []).append(item)
        with self._reading(model, method) as db:
            if db is None:
                return found
            for dataset, items in by_dataset.items():
                for start in range(0, len(items), _AT_ONCE):
                    some = items[start : start + _AT_ONCE]
                    rows = db.execute(
                        "SELECT item, text, payload, reason FROM other WHERE kind = ? "
                        f"AND dataset = ? AND item IN ({','.join('?' * len(some))})",
                        (self.kind, dataset, *some),
                    )
                    for item, text, payload, reason in rows:
                        found[dataset, item, text] = payload, reason
        return found

    def _put(
        self,
        model: ModelKey,
        method: Method,
        rows: Sequence[tuple[Item, bytes | None, str | None]],
    ) -> None:
        packed = [(self.kind, *self._key(item), payload, why) for item, payload, why in rows]
        with self._files.writing(model, method) as db:
            db.execute(SCHEMA)
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


def whole(payload: bytes | None) -> bool:
    """Whether there is one, and it is what was stored."""
    return payload is not None and zlib.crc32(payload[4:]).to_bytes(4, "big") == payload[:4]


def checked(payload: bytes | None) -> Fields | None:
    """The fields; None where nothing is stored or it is not what was stored."""
    if payload is None or not whole(payload):
        return None
    try:
        fields = json.loads(payload[4:])
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
