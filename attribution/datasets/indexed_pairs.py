"""Pairs of a large data set in an index: one SQLite file with their texts and, as columns of
numbers, everything else. Only the columns are in memory; texts are read on demand."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.errors import UserError
from poslens.attribution.pairs import LabelName, Labels, Pairs, fingerprints, midpoints
from poslens.attribution.types import EvidenceSpan, TextPair

LABELS: tuple[LabelName, ...] = get_args(LabelName)
NUMBERS = ("texts", "documents", "characters", "starts", "ends", "document_tokens")
"""Numeric columns: a fingerprint of the texts, the document's number and its length in characters,
start and end of the evidence, and the document's token count; -1 if there is none."""

_CHUNK = 256
_DOCUMENT_TEXTS = "SELECT number, text FROM documents WHERE number >= ? AND number < ?"
_ROW_TEXTS = (
    "SELECT row, CAST(pair_id || ' ' || query AS BLOB) FROM pairs WHERE row >= ? AND row < ?"
)
_ROWS = "SELECT row FROM pairs WHERE pair_id = ? ORDER BY row"
_QUERIES = "SELECT row, pair_id, query FROM pairs WHERE row IN (SELECT value FROM json_each(?))"
_DOCUMENTS = "SELECT number, text FROM documents WHERE number IN (SELECT value FROM json_each(?))"

Rows = NDArray[np.int64]
Integers = NDArray[np.signedinteger[Any]]


class DamagedIndexError(Exception):
    """Raised if an index does not contain what was written."""


class PairIndex:
    """An open index. Any number of threads may read it. `about` is the metadata of its writer;
    `digest` covers all columns."""

    def __init__(self, db: sqlite3.Connection, path: Path | None = None) -> None:
        """`path` is None for a temporary index.

        Raises:
            DamagedIndexError: a column is not as it was written.
            sqlite3.Error: the file is not an index.
        """
        self._db, self._path = db, path
        self._lock = threading.Lock()
        self.damaged = False
        total = hashlib.blake2b(digest_size=16)
        columns: dict[str, bytes] = {}
        for name, checksum, data in db.execute(
            "SELECT name, checksum, data FROM columns ORDER BY name"
        ):
            if checksum_of(data) != checksum:
                raise DamagedIndexError(f"the column {name}")
            total.update(checksum)
            columns[name] = data
        self.digest = total.hexdigest()
        if missing := {"about", "ids", *NUMBERS, *LABELS} - columns.keys():
            raise DamagedIndexError(f"no column {missing}")
        self.about: dict[str, Any] = json.loads(columns["about"])
        self.numbers = {name: unpacked(columns[name]) for name in NUMBERS}
        self.labels = {
            name: Labels(unpacked(columns[name]), tuple(json.loads(columns[f"{name}.values"])))
            for name in LABELS
        }

    @cached_property
    def ids(self) -> NDArray[np.object_]:
        """Pair ids of all rows."""
        ((ids,),) = self._select("SELECT data FROM columns WHERE name = ?", "ids")
        return np.array(json.loads(ids), dtype=object)

    def rows_of(self, pair_id: str) -> Rows:
        """The rows with this pair id, ascending."""
        rows = self._select(_ROWS, pair_id.encode("utf-8", "surrogatepass"))
        return np.array([row for (row,) in rows], np.int64)

    def pairs(self, rows: Rows) -> list[TextPair]:
        """The pairs in these rows.

        Raises:
            UserError: the index is damaged. It is deleted, and built again at the next opening.
        """
        numbers = {name: column[rows].tolist() for name, column in self.numbers.items()}
        labels = {name: self._values(name, rows) for name in LABELS}
        try:
            documents = dict(self._select(_DOCUMENTS, [*set(numbers["documents"])]))
            documents = {number: self._decoded(text) for number, text in documents.items()}
            queries = {row: texts for row, *texts in self._select(_QUERIES, rows.tolist())}
            pairs = [
                TextPair(
                    self._decoded(queries[row][0]),
                    self._decoded(queries[row][1]),
                    documents[numbers["documents"][at]],
                    EvidenceSpan(start, numbers["ends"][at]) if start >= 0 else None,
                    labels["language"][at],
                    labels["domain"][at],
                    labels["dataset"][at] or "",
                    tokens if tokens >= 0 else None,
                    labels["query_type"][at],
                    labels["query_language"][at],
                )
                for at, (row, start, tokens) in enumerate(
                    zip(rows.tolist(), numbers["starts"], numbers["document_tokens"], strict=True)
                )
            ]
        except (LookupError, ValueError) as error:
            raise self._fail() from error
        if fingerprints(pair.text_digest for pair in pairs).tolist() != numbers["texts"]:
            raise self._fail()
        return pairs

    def containing(self, words: Sequence[str]) -> NDArray[np.bool_]:
        """Mask of the rows that have every word in their id, query or document, ignoring case."""
        document = self.numbers["documents"]
        in_documents = self._containing(_DOCUMENT_TEXTS, int(document.max(initial=-1)) + 1, words)
        in_rows = self._containing(_ROW_TEXTS, len(document), words)
        keep: NDArray[np.bool_] = np.logical_and.reduce(in_documents[document] | in_rows, axis=1)
        return keep

    def _containing(self, statement: str, n: int, words: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each of n texts has each of w words [n, w]; every text is read once."""
        needles = [word.casefold() for word in words]
        has = np.zeros((n, len(needles)), np.bool_)
        for first in range(0, n, _CHUNK):
            for number, text in self._select(statement, first, first + _CHUNK):
                folded = self._decoded(text).casefold()
                has[number] = [needle in folded for needle in needles]
        return has

    def _values(self, name: LabelName, rows: Rows) -> list[str | None]:
        codes, values = self.labels[name]
        return [values[code] if code >= 0 else None for code in codes[rows].tolist()]

    def _decoded(self, text: bytes) -> str:
        try:
            return text.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self._fail() from error

    def _select(self, statement: str, *values: list[int] | bytes | str | int) -> list[Any]:
        bound = [json.dumps(value) if isinstance(value, list) else value for value in values]
        try:
            with self._lock:
                return self._db.execute(statement, bound).fetchall()
        except sqlite3.Error as error:
            raise self._fail() from error

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the index into an empty database.

        Raises:
            sqlite3.Error: it can't be written.
        """
        with self._lock:
            self._db.backup(target)

    def _fail(self) -> UserError:
        """Delete the index, so that it is built again, and return the error to raise."""
        self.damaged = True
        with suppress(OSError):
            if self._path is not None:
                self._path.unlink()
        return UserError(
            f"The index of {self.about.get('title') or 'this data set'} was damaged, so PosLens "
            "deleted it: open the data set again to build it from its files."
        )


class IndexedPairs(Pairs):
    """The pairs in `rows` of an index, `source`."""

    def __init__(self, source: PairIndex, rows: Rows) -> None:
        super().__init__()
        self.source, self._rows = source, rows
        n = len(rows)
        self._whole = bool(n) and int(rows[-1]) - int(rows[0]) == n - 1
        self._whole = self._whole and bool((rows[1:] > rows[:-1]).all())

    def __len__(self) -> int:
        return len(self._rows)

    def _at(self, place: int | slice) -> TextPair | tuple[TextPair, ...]:
        if isinstance(place, slice):
            return tuple(_read(self.source, self._rows[place]))
        return self.source.pairs(self._rows[[place]])[0]

    def __iter__(self) -> Iterator[TextPair]:
        return _read(self.source, self._rows)

    def __reversed__(self) -> Iterator[TextPair]:
        return _read(self.source, self._rows[::-1])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IndexedPairs) and self.source.digest == other.source.digest:
            return np.array_equal(self._rows, other._rows)
        return super().__eq__(other)

    __hash__ = Pairs.__hash__

    @cached_property
    def digest(self) -> str:
        total = hashlib.blake2b(self.source.digest.encode(), digest_size=16)
        total.update(self._rows.tobytes())
        return total.hexdigest()

    # -- columns -------------------------------------------------------------------------------

    @cached_property
    def ids(self) -> NDArray[np.object_]:
        return self.source.ids[self._rows]

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        return self._column("texts").astype(np.int64, copy=False)

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        return _renumbered(self._column("documents"))[0]

    @cached_property
    def document_tokens(self) -> NDArray[np.int64]:
        return np.maximum(self._column("document_tokens"), 0).astype(np.int64, copy=False)

    @cached_property
    def evidence_positions(self) -> NDArray[np.float64]:
        return midpoints(*map(self._column, ("starts", "ends", "characters")))

    @cached_property
    def has_queries(self) -> bool:
        return bool(self.source.about["queries"]) and super().has_queries

    def _column(self, name: str) -> Integers:
        column = self.source.numbers[name]
        if self._whole:
            return column[self._rows[0] : self._rows[-1] + 1]
        return column[self._rows]

    def _read_labels(self, name: LabelName) -> Labels:
        codes, values = self.source.labels[name]
        numbers, present = _renumbered(codes[self._rows])
        return Labels(numbers.astype(codes.dtype), tuple(values[code] for code in present.tolist()))

    # -- lookups and selections ----------------------------------------------------------------

    def find(self, pair_id: str) -> int | None:
        rows = self.source.rows_of(pair_id)
        if self._whole:
            places = rows - self._rows[0]
            places = places[(places >= 0) & (places < len(self))]
        else:
            places = np.flatnonzero(np.isin(self._rows, rows)) if len(rows) else rows
        return int(places[-1]) if len(places) else None

    def select(self, places: NDArray[np.int64] | NDArray[np.bool_]) -> Pairs:
        return IndexedPairs(self.source, self._rows[places])

    def containing(self, words: Sequence[str]) -> NDArray[np.bool_]:
        keep: NDArray[np.bool_] = self.source.containing(words)[self._rows]
        return keep

    def holds(self, pairs: Sequence[TextPair]) -> bool:
        return (
            isinstance(pairs, IndexedPairs)
            and pairs.source.digest == self.source.digest
            and self.source.about["unique"]
            and bool(np.isin(pairs._rows, self._rows).all())
        )

    @cached_property
    def _once(self) -> Pairs | None:
        if self._whole and self.source.about["unique"] and len(self.places) < 2:
            return None
        return super()._once


def packed(values: array[int]) -> bytes:
    """Integers in the smallest type that holds them, followed by the number of its bytes."""
    numbers = np.frombuffer(values, np.int64)
    for size in (1, 2, 4, 8):
        smaller = numbers.astype(f"<i{size}")
        if size == 8 or np.array_equal(smaller, numbers):
            break
    return smaller.tobytes() + bytes([size])


def unpacked(data: bytes) -> Integers:
    """The integers that `packed` packed."""
    size = data[-1]
    return np.frombuffer(data, f"<i{size}", count=(len(data) - 1) // size)


def checksum_of(data: bytes) -> bytes:
    """The checksum by which a damaged column is recognized."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _read(index: PairIndex, rows: Rows) -> Iterator[TextPair]:
    chunks = (rows[first : first + _CHUNK] for first in range(0, len(rows), _CHUNK))
    return chain.from_iterable(map(index.pairs, chunks))


def _renumbered(codes: Integers) -> tuple[NDArray[np.int64], Integers]:
    """Codes [n] renumbered by first occurrence, with -1 unchanged, and the old code of each new
    number."""
    import pandas as pd  # here: slow to import

    coded = codes >= 0
    numbers = np.full(len(codes), -1)
    numbers[coded], present = pd.factorize(codes[coded])
    return numbers, present
