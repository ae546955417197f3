"""Results of any kind other than attributions, such as tests and interventions, in the store's
files.

A result belongs to a kind, a model, a method and an item (a pair, a triple of texts). Everything
else it depends on is in the item's fingerprint, so that a changed text is a cache miss. A result is
stored completely or not at all, and a damaged one counts as missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from poslens.attribution.types import Method, TextPair
from poslens.cache.keys import text_fingerprint
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.codec import pack_fields, unpack_fields
from poslens.cache.storage.schema import Misfit, Owner, Schema
from poslens.cache.storage.store import ModelKey, Store

Item = TypeVar("Item")
T = TypeVar("T")

_AT_ONCE = 500

# Decoded results with the bytes they were decoded from, because a page that refreshes itself reads
# the same ones repeatedly. An entry is used only if the stored bytes are still the same, so that a
# replaced, deleted or damaged result is noticed at once.
_DECODED: LRUCache[tuple[bytes, Any]] = LRUCache(32 << 20, weigh=lambda kept: len(kept[0]))

SCHEMA = """
CREATE TABLE IF NOT EXISTS other (
    kind TEXT NOT NULL, dataset TEXT NOT NULL, item TEXT NOT NULL, text TEXT NOT NULL,
    payload BLOB, reason TEXT, PRIMARY KEY (kind, dataset, item)) WITHOUT ROWID
"""


class Key(NamedTuple):
    """Identifies an item: data set, id within it, and fingerprint of everything its result depends
    on."""

    dataset: str
    item: str
    fingerprint: str


def itself(key: Key) -> Key:
    """The key itself, for items that consist of nothing but their key."""
    return key


def pair_key(pair: TextPair) -> Key:
    """Data set, pair id, and a fingerprint of the pair's texts and evidence."""
    span = pair.evidence
    evidence = f"{span.start}-{span.end}" if span else ""
    return Key(pair.dataset, pair.pair_id, f"{text_fingerprint(pair)}:{evidence}")


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """Stored results of a set of items by item id, in the order of the items, and the reasons why
    others failed."""

    results: dict[str, T]
    failed: dict[str, str]


class Results(Generic[Item, T]):
    """Results of one kind below one folder. Any number of threads and processes may use it.

    `key` returns an item's key; `schema` defines how a result is stored, and `fits` whether a
    result is valid for its item. Invalid rows count as missing: they may have been forged, with
    correct checksums.
    """

    def __init__(
        self,
        root: Path,
        kind: str,
        *,
        key: Callable[[Item], Key],
        schema: Schema[T],
        fits: Callable[[T], bool] = lambda result: True,
    ) -> None:
        # The store provides files, locks and error messages for disk errors.
        self._files = Store(root)
        self.kind = kind
        self.root = root
        self.key, self._schema, self._fits = key, schema, fits

    def get(self, model: ModelKey, method: Method, item: Item) -> T | None:
        """The stored result; None if there is none for this item with its current fingerprint."""
        key = self.key(item)
        payload, _ = self._rows(model, method, [key]).get(key, (None, None))
        return self._read(payload, Owner(model, method, key.item))

    def select(self, model: ModelKey, method: Method, items: Sequence[Item]) -> Stored[T]:
        """All stored results of `items`. Only results that this process has not read before are
        decoded, so results must be immutable."""
        keys = [self.key(item) for item in items]
        rows = self._rows(model, method, keys)
        results: dict[str, T] = {}
        failed: dict[str, str] = {}
        for key in keys:
            payload, reason = rows.get(key, (None, None))
            if reason is not None:
                failed[key.item] = reason
            elif payload is not None:
                found = self._decoded(model, method, key, payload)
                if found is not None:
                    results[key.item] = found
        return Stored(results, failed)

    def put(self, model: ModelKey, method: Method, results: Sequence[tuple[Item, T]]) -> None:
        """Store results in one transaction, replacing earlier results of the same items.

        Raises:
            UserError: the folder can't be written (permissions, a full disk).
        """
        rows = [(item, pack_fields(self._schema.pack(result)), None) for item, result in results]
        self._put(model, method, rows)

    def put_failures(
        self, model: ModelKey, method: Method, failures: Sequence[tuple[Item, str]]
    ) -> None:
        """Store why items have no result, so that a resumed run doesn't retry them."""
        self._put(model, method, [(item, None, reason) for item, reason in failures])

    def missing(
        self, model: ModelKey, method: Method, items: Sequence[Item], *, retry: bool = False
    ) -> list[Item]:
        """The items with neither a result nor, unless `retry`, a stored failure."""
        keys = [self.key(item) for item in items]
        stored = {
            key
            for key, (payload, reason) in self._rows(model, method, keys).items()
            if (reason is not None and not retry)
            or (payload is not None and self._decoded(model, method, key, payload) is not None)
        }
        return [item for item, key in zip(items, keys, strict=True) if key not in stored]

    # -- rows ----------------------------------------------------------------------------------

    def _decoded(self, model: ModelKey, method: Method, key: Key, payload: bytes) -> T | None:
        """The decoded `payload`, from memory if this process has decoded it before; None if it is
        damaged or invalid."""
        place = str(self._files.root), self.kind, model, repr(method), key
        known = _DECODED.find(place)
        if known is not None and known[0] == payload:
            return known[1]  # type: ignore[no-any-return]  # each kind has a type of its own
        result = self._read(payload, Owner(model, method, key.item))
        if result is not None:
            _DECODED.keep(place, (payload, result))
        return result

    def _read(self, payload: bytes | None, owner: Owner) -> T | None:
        fields = unpack_fields(payload)
        if fields is None:
            return None
        with suppress(Misfit):
            result = self._schema.unpack(fields, owner)
            return result if self._fits(result) else None
        return None

    def _rows(
        self, model: ModelKey, method: Method, keys: Sequence[Key]
    ) -> dict[Key, tuple[bytes | None, str | None]]:
        """Payload and failure reason of those of `keys` that have a row, here or in the
        fallback."""
        found = self._rows_of(self._files, model, method, keys)
        lacking = [key for key in keys if found.get(key, (None, None))[0] is None]
        if lacking:
            fallback = self._files.read_fallback(
                model, method, lambda files: self._rows_of(files, model, method, lacking)
            )
            found |= fallback or {}
        return found

    def _rows_of(
        self, files: Store, model: ModelKey, method: Method, keys: Sequence[Key]
    ) -> dict[Key, tuple[bytes | None, str | None]]:
        found: dict[Key, tuple[bytes | None, str | None]] = {}
        by_dataset: dict[str, list[str]] = {}
        for dataset, item, _ in keys:
            by_dataset.setdefault(dataset, []).append(item)
        with _reading(files, model, method) as db:
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
                        found[Key(dataset, item, text)] = payload, reason
        return found

    def _put(
        self,
        model: ModelKey,
        method: Method,
        rows: Sequence[tuple[Item, bytes | None, str | None]],
    ) -> None:
        packed = [(self.kind, *self.key(item), payload, why) for item, payload, why in rows]
        with self._files.writing(model, method) as db:
            db.execute(SCHEMA)
            db.executemany("INSERT OR REPLACE INTO other VALUES (?, ?, ?, ?, ?, ?)", packed)


@contextmanager
def _reading(files: Store, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection | None]:
    """The file, or None if it has no table for such results yet."""
    with files.reading(model, method) as db:
        known = (
            db is not None
            and db.execute("SELECT 1 FROM sqlite_master WHERE name = 'other'").fetchone()
        )
        yield db if known else None
