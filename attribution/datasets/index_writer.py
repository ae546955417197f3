"""Collecting the pairs of a data set: small ones in memory, large ones in an index."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from poslens.attribution.datasets.indexed_pairs import (
    LABELS,
    NUMBERS,
    IndexedPairs,
    PairIndex,
    checksum_of,
    packed,
)
from poslens.attribution.errors import UserError
from poslens.attribution.pairs import LabelName, Pairs, fingerprints
from poslens.attribution.types import TextPair

IN_MEMORY = 16_000_000
"""Maximum characters of a data set's pairs, with `_PER_PAIR` added for each pair, that are held in
memory. Larger data sets are in an index."""

_PER_PAIR = 300
_BATCH = 1000
_SCHEMA = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000;
CREATE TABLE documents (number INTEGER PRIMARY KEY, text BLOB NOT NULL);
CREATE TABLE pairs (row INTEGER PRIMARY KEY, pair_id BLOB NOT NULL, query BLOB NOT NULL);
CREATE TABLE columns (name TEXT PRIMARY KEY, checksum BLOB NOT NULL, data BLOB NOT NULL);
BEGIN;
"""


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UserError(
            f"The index of a large data set can't be written to the temporary folder ({error}): "
            "free space there, or set SQLITE_TMPDIR to another folder."
        ) from error


class PairWriter:
    """Takes pairs one by one. They stay in memory while they are few; then they go into a temporary
    index, which disappears with the last reference to it."""

    def __init__(self) -> None:
        self._pairs: list[TextPair] = []
        """All pairs or, with an index, those that are not in it yet."""
        self._characters = 0
        self._db: sqlite3.Connection | None = None
        self._numbers = {name: array("q") for name in NUMBERS}
        self._labels = {name: array("q") for name in LABELS}
        self._codes: dict[LabelName, dict[str | None, int]] = {name: {None: -1} for name in LABELS}
        self._documents: dict[bytes, int] = {}
        self._queries = 0

    def __len__(self) -> int:
        return len(self._numbers["texts"]) + len(self._pairs)

    def add(self, pair: TextPair) -> None:
        """Append a pair.

        Raises:
            UserError: there is no space for the index.
        """
        self._pairs.append(pair)
        self._characters += len(pair.query) + len(pair.document) + _PER_PAIR
        large = self._characters > IN_MEMORY
        if large and (self._db is None or len(self._pairs) >= _BATCH):
            self._flush()

    @_translate_errors()
    def finished(self, title: str, versions: Iterable[TextPair]) -> tuple[Pairs, Pairs]:
        """The pairs, and other versions of them. No more can be added.

        Raises:
            UserError: there is no space for the index.
        """
        if self._db is None:
            return Pairs(self._pairs), Pairs(versions)
        db = self._flush()
        n = len(self)
        about: dict[str, Any] = {"title": title, "n": n, "queries": self._queries}
        for version in versions:
            self.add(version)
        self._flush()
        self._documents = {}
        db.execute("CREATE INDEX pairs_by_id ON pairs (pair_id)")
        distinct = "SELECT count(DISTINCT pair_id) FROM pairs WHERE row < ?"
        (n_ids,) = db.execute(distinct, (n,)).fetchone()
        about["unique"] = n_ids == n
        rows = db.execute("SELECT pair_id FROM pairs ORDER BY row")
        ids = [pair_id.decode("utf-8", "surrogatepass") for (pair_id,) in rows]
        columns: dict[str, bytes] = {"ids": json.dumps(ids).encode()}
        columns |= {name: packed(values) for name, values in self._numbers.items()}
        for name, codes in self._codes.items():
            columns[name] = packed(self._labels[name])
            values = [value for value in codes if value is not None]
            columns[f"{name}.values"] = json.dumps(values).encode()
        columns["about"] = json.dumps(about).encode()
        put_columns(db, columns)
        db.execute("COMMIT")
        return indexed(PairIndex(db))

    @_translate_errors()
    def _flush(self) -> sqlite3.Connection:
        """Move the pairs in memory to the index."""
        if self._db is None:
            # SQLite keeps a database without a name in a file that is deleted when it is closed.
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._db.executescript(_SCHEMA)
        new: list[tuple[int, bytes]] = []
        first = len(self._numbers["texts"])
        numbers = self._numbers
        for pair in self._pairs:
            document = pair.document.encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(document, digest_size=16).digest()
            next_number = len(self._documents)
            number = self._documents.setdefault(digest, next_number)
            if number == next_number:
                new.append((number, document))
            evidence = pair.evidence
            tokens = pair.document_tokens
            numbers["documents"].append(number)
            numbers["characters"].append(len(pair.document))
            numbers["starts"].append(-1 if evidence is None else evidence.start)
            numbers["ends"].append(-1 if evidence is None else evidence.end)
            numbers["document_tokens"].append(-1 if tokens is None else tokens)
            for name, codes in self._codes.items():
                self._labels[name].append(codes.setdefault(getattr(pair, name), len(codes) - 1))
            self._queries += bool(pair.query)
        numbers["texts"].frombytes(fingerprints(p.text_digest for p in self._pairs).tobytes())
        self._db.executemany("INSERT INTO documents VALUES (?, ?)", new)
        self._db.executemany(
            "INSERT INTO pairs VALUES (?, ?, ?)",
            (
                (row, *(text.encode("utf-8", "surrogatepass") for text in (p.pair_id, p.query)))
                for row, p in enumerate(self._pairs, first)
            ),
        )
        self._pairs = []
        return self._db


def indexed(index: PairIndex) -> tuple[Pairs, Pairs]:
    """The pairs in an index, and the other versions of them."""
    n = index.about["n"]
    total = len(index.numbers["texts"])
    return IndexedPairs(index, np.arange(n)), IndexedPairs(index, np.arange(n, total))


def put_columns(db: sqlite3.Connection, columns: Mapping[str, bytes]) -> None:
    """Write columns of an index, in place of earlier ones with these names."""
    rows = [(name, checksum_of(data), data) for name, data in columns.items()]
    db.executemany("INSERT OR REPLACE INTO columns VALUES (?, ?, ?)", rows)
