"""Results of any kind other than attributions, such as tests and interventions, in the store's
files.

A result belongs to a kind, a model, a method and an item (a pair, a triple of texts). Everything
else it depends on is in the item's fingerprint, so that a changed text is a cache miss. A result is
stored completely or not at all, and a damaged one counts as missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from poslens.attribution.types import Method, TextPair
from poslens.cache.keys import text_fingerprint
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.codec import pack_fields, unpack_fields
from poslens.cache.storage.files import Files, ModelKey
from poslens.cache.storage.rows import OTHER, Key, StoredRow, insert, select
from poslens.cache.storage.schema import Misfit, Owner, Schema

__all__ = ["Key", "Results", "Stored", "itself", "pair_key", "rows_of"]

Item = TypeVar("Item")
T = TypeVar("T")

# Decoded results with the bytes they were decoded from, because a page that refreshes itself reads
# the same ones repeatedly. An entry is used only if the stored bytes are still the same, so that a
# replaced, deleted or damaged result is noticed at once.
_DECODED: LRUCache[tuple[bytes, Any]] = LRUCache(32 << 20, weigh=lambda entry: len(entry[0]))

_NO_ROW = StoredRow(0, None, None)

_KEY_BYTES = 200
"""Memory of a key without its texts, in bytes."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Decoded rows by key, in the order of the keys, and the reasons of stored failures. `stamp` is
    the files' stamp, `digest` covers all rows, and `size` is the size of the rows in bytes."""

    stamp: object
    results: dict[Key, Any]
    failed: dict[Key, str]
    digest: str
    size: int


# What was read last, because a page asks several times whether a job is done, and for its results.
_ROWS: LRUCache[_Rows] = LRUCache(32 << 20, weigh=lambda rows: rows.size)


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
    others failed. `digest` covers all of it, for caches of what is computed from it."""

    results: dict[str, T]
    failed: dict[str, str]
    digest: str = field(default="", compare=False)


class Results(Generic[Item, T]):
    """Results of one kind below one folder. Any number of threads and processes may use it.

    `schema` names the kind and defines how a result is stored, `key` returns an item's key, and
    `fits` whether a result is valid for its item. Invalid rows count as missing: they may have been
    forged, with correct checksums.
    """

    def __init__(
        self,
        root: Path,
        schema: Schema[T],
        *,
        key: Callable[[Item], Key],
        fits: Callable[[T], bool] = lambda result: True,
    ) -> None:
        self._files = Files(root)
        self.kind, self._kind = schema.name, OTHER + schema.name
        self.root = root
        self.key, self._schema, self._fits = key, schema, fits

    def get(self, model: ModelKey, method: Method, item: Item) -> T | None:
        """The stored result; None if there is none for this item with its current fingerprint."""
        key = self.key(item)
        row = rows_of(self._files, model, method, self._kind, [key]).get(key)
        return row and self._read(row.payload, Owner(model, method, key.item))

    def select(self, model: ModelKey, method: Method, items: Sequence[Item]) -> Stored[T]:
        """All stored results of `items`. Only results that this process has not read before are
        decoded, so results must be immutable."""
        rows = self._rows(model, method, tuple(map(self.key, items)))
        return Stored(
            {key.item: result for key, result in rows.results.items()},
            {key.item: reason for key, reason in rows.failed.items()},
            rows.digest,
        )

    def put(self, model: ModelKey, method: Method, results: Sequence[tuple[Item, T]]) -> None:
        """Store results in one transaction, replacing earlier results of the same items.

        Raises:
            UserError: the folder can't be written (permissions, a full disk).
        """
        rows = [(item, None, pack_fields(self._schema.pack(result))) for item, result in results]
        self._put(model, method, rows)

    def put_failures(
        self, model: ModelKey, method: Method, failures: Sequence[tuple[Item, str]]
    ) -> None:
        """Store why items have no result, so that a resumed run doesn't retry them."""
        self._put(model, method, [(item, reason, None) for item, reason in failures])

    def missing(
        self, model: ModelKey, method: Method, items: Sequence[Item], *, retry: bool = False
    ) -> list[Item]:
        """The items with neither a result nor, unless `retry`, a stored failure."""
        keys = tuple(map(self.key, items))
        rows = self._rows(model, method, keys)
        done = rows.results.keys() if retry else rows.results.keys() | rows.failed.keys()
        return [item for item, key in zip(items, keys, strict=True) if key not in done]

    # -- rows ----------------------------------------------------------------------------------

    def _rows(self, model: ModelKey, method: Method, keys: tuple[Key, ...]) -> _Rows:
        """The rows of `keys`, from memory if nothing was written since they were read."""
        place = str(self._files.root), self.kind, model, repr(method), keys
        stamp = self._files.stamp(model, method)
        if (read := _ROWS.find(place)) is not None and read.stamp == stamp:
            return read
        rows = rows_of(self._files, model, method, self._kind, keys)
        results: dict[Key, T] = {}
        failed: dict[Key, str] = {}
        digest, size = hashlib.sha256(), 0
        for key in keys:
            _, reason, payload = rows.get(key, _NO_ROW)
            digest.update(f"{key!r} {reason!r} {len(payload or b'')} ".encode() + (payload or b""))
            size += len(payload or b"") + _KEY_BYTES
            if reason is not None:
                failed[key] = reason
            elif payload is not None:
                result = self._decoded(model, method, key, payload)
                if result is not None:
                    results[key] = result
        return _ROWS.keep(place, _Rows(stamp, results, failed, digest.hexdigest(), size))

    def _decoded(self, model: ModelKey, method: Method, key: Key, payload: bytes) -> T | None:
        """The decoded `payload`, from memory if this process has decoded it before; None if it is
        damaged or invalid."""
        place = str(self._files.root), self.kind, model, repr(method), key
        decoded = _DECODED.find(place)
        if decoded is not None and decoded[0] == payload:
            return decoded[1]  # type: ignore[no-any-return]  # each kind has its own type
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

    def _put(
        self,
        model: ModelKey,
        method: Method,
        results: Sequence[tuple[Item, str | None, bytes | None]],
    ) -> None:
        packed = [(self._kind, *self.key(item), *row) for item, *row in results]
        with self._files.writing(model, method) as db:
            insert(db, packed)


def rows_of(
    files: Files, model: ModelKey, method: Method, kind: str, keys: Sequence[Key]
) -> dict[Key, StoredRow]:
    """The rows of those of `keys` that have one, here, in the fallback, or in its own fallback."""

    with files.reading(model, method) as db:
        rows = {} if db is None else select(db, kind, keys)
    if lacking := [key for key in keys if key not in rows or rows[key].payload is None]:
        fallback = files.read_fallback(
            model, method, lambda files: rows_of(files, model, method, kind, lacking)
        )
        rows |= fallback or {}
    return rows
