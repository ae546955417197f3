"""The store of results: one SQLite file for each model fingerprint and method.

Each put is one transaction, so a result is there whole or not at all, whatever process dies.
Per-token results are stored once under the method's `core`; position curves are stored beside
them for each normalization and resampling, and derived from them where only those change.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attribution.errors import UserError
from attribution.position import document_curve
from attribution.types import N_BINS, Array, Attribution, Method, TextPair
from cache.codec import DamagedPayload, decode, encode, pack_floats, unpack_floats
from cache.fingerprint import text_fingerprint

LAYOUT = "v1"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS result (
    dataset TEXT NOT NULL, pair_id TEXT NOT NULL, text TEXT NOT NULL, score REAL,
    truncated INTEGER, payload BLOB, reason TEXT, PRIMARY KEY (dataset, pair_id));
CREATE TABLE IF NOT EXISTS curve (
    variant TEXT NOT NULL, dataset TEXT NOT NULL, pair_id TEXT NOT NULL, points BLOB NOT NULL,
    PRIMARY KEY (variant, dataset, pair_id)) WITHOUT ROWID;
"""
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A model as the store knows it; the name is for people, the fingerprint is the key."""

    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StoredCurves:
    """What is stored of a set of pairs: curves [n, 100], scores [n] and whether the document was
    truncated [n], in the order of `pair_ids`; and the pairs that failed."""

    pair_ids: tuple[str, ...]
    curves: Array
    scores: Array
    truncated: Array
    failed: dict[str, str]

    @property
    def n_truncated(self) -> int:
        """How many documents were longer than the model reads."""
        return int(self.truncated.sum())


class Store:
    """Results below one folder. Any number of threads and processes may use the same folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def get(self, model: ModelKey, method: Method, pair: TextPair) -> Attribution | None:
        """The stored result, or None where there is none for these very texts.

        A damaged one counts as none; it is computed and written again.
        """
        row = None
        with self.reading(model, method) as db:
            if db is not None:
                row = db.execute(
                    "SELECT payload FROM result WHERE dataset = ? AND pair_id = ? AND text = ?",
                    (pair.dataset, pair.pair_id, text_fingerprint(pair)),
                ).fetchone()
        if row is None or row[0] is None:
            return None
        try:
            return decode(row[0], model.name, method, pair.pair_id)
        except DamagedPayload:
            return None

    def put(
        self, model: ModelKey, method: Method, results: Sequence[tuple[TextPair, Attribution]]
    ) -> None:
        """Store results with their curves, all or none; what was there of a pair is replaced.

        Raises:
            UserError: the folder cannot be written (rights, a full disk).
        """
        # Encoded before the write lock is taken, so that others wait for the disk alone.
        rows = [
            (p.dataset, p.pair_id, text_fingerprint(p), a.score, a.document.truncated, encode(a))
            for p, a in results
        ]
        curves = [(p, document_curve(a, method)) for p, a in results]
        with self.writing(model, method) as db:
            self._forget(db, (pair for pair, _ in results))
            db.executemany(
                "INSERT INTO result (dataset, pair_id, text, score, truncated, payload) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
            _insert_curves(db, method, curves)

    def put_failures(
        self, model: ModelKey, method: Method, failures: Sequence[tuple[TextPair, str]]
    ) -> None:
        """Store why pairs have no result, so that a resumed run does not try them again."""
        with self.writing(model, method) as db:
            self._forget(db, (pair for pair, _ in failures))
            db.executemany(
                "INSERT INTO result (dataset, pair_id, text, reason) VALUES (?, ?, ?, ?)",
                [(p.dataset, p.pair_id, text_fingerprint(p), reason) for p, reason in failures],
            )

    def missing(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], *, retry: bool = False
    ) -> list[TextPair]:
        """The pairs with neither a result nor, unless `retry`, a stored failure."""
        stored: set[tuple[str, str, str]] = set()
        with self.reading(model, method) as db:
            if db is not None:
                where = " WHERE payload IS NOT NULL" if retry else ""
                stored = set(db.execute(f"SELECT dataset, pair_id, text FROM result{where}"))
        return [p for p in pairs if (p.dataset, p.pair_id, text_fingerprint(p)) not in stored]

    def curves(self, model: ModelKey, method: Method, pairs: Sequence[TextPair]) -> StoredCurves:
        """Curves of those of `pairs` that have a result, under the method's normalization and
        resampling; curves of another choice are derived from the stored results, not computed."""
        variant = _variant(method)
        wanted = {(p.dataset, p.pair_id): (p, text_fingerprint(p)) for p in pairs}
        found: dict[tuple[str, str], np.ndarray] = {}
        scores: dict[tuple[str, str], tuple[float, int]] = {}
        failed: dict[str, str] = {}
        with self.reading(model, method) as db:
            if db is not None:
                for dataset, pair_id, text, score, truncated, reason in db.execute(
                    "SELECT dataset, pair_id, text, score, truncated, reason FROM result"
                ):
                    asked = wanted.get((dataset, pair_id))
                    if asked is None or asked[1] != text:
                        continue
                    if reason is not None:
                        failed[pair_id] = reason
                    else:
                        scores[dataset, pair_id] = (score, truncated)
                for dataset, pair_id, points in db.execute(
                    "SELECT dataset, pair_id, points FROM curve WHERE variant = ?", (variant,)
                ):
                    if (curve := _curve(points)) is not None:
                        found[dataset, pair_id] = curve
        derived: list[tuple[TextPair, Array]] = []
        damaged: list[TextPair] = []
        for key in scores:
            if key in found:
                continue
            pair = wanted[key][0]
            result = self.get(model, method, pair)
            if result is None:
                damaged.append(pair)
                continue
            derived.append((pair, document_curve(result, method)))
            found[key] = derived[-1][1]
        if derived or damaged:
            with self.writing(model, method) as db:
                # What cannot be read any more is missing again, so that the next run computes it.
                self._forget(db, damaged)
                _insert_curves(db, method, derived)
        keys = [key for key in wanted if key in scores and key in found]
        return StoredCurves(
            pair_ids=tuple(pair_id for _, pair_id in keys),
            curves=np.array([found[key] for key in keys], dtype=np.float32).reshape(-1, N_BINS),
            scores=np.array([scores[key][0] for key in keys], dtype=np.float32),
            truncated=np.array([bool(scores[key][1]) for key in keys], dtype=bool),
            failed=failed,
        )

    # -- files ---------------------------------------------------------------------------------

    def path(self, model: ModelKey, method: Method) -> Path:
        """The file of a model and a method's core."""
        core = hashlib.sha256(method.core.encode()).hexdigest()[:16]
        return self.root / LAYOUT / model.fingerprint / f"{method.name}-{core}.db"

    @contextmanager
    def reading(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection | None]:
        """The file, open for reading; None where there is none yet.

        Raises:
            UserError: it cannot be read.
        """
        path = self.path(model, method)
        with _explained(path):
            if not path.is_file() or path.stat().st_size == 0:
                yield None
                return
            # Not mode=ro: only a connection that may write can roll back what a killed process
            # left half written.
            with closing(
                sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_TIMEOUT_S)
            ) as db:
                yield db

    @contextmanager
    def writing(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection]:
        """The file, inside a transaction that is committed at the end.

        Raises:
            UserError: it cannot be written (rights, a full disk).
        """
        path = self.path(model, method)
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = FULL")
                # IMMEDIATE takes the write lock at once: two writers wait instead of failing
                # when both have read.
                db.execute("BEGIN IMMEDIATE")
                try:
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        db.execute(statement)
                    db.executemany(
                        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                        [("model", model.name), ("method", method.core)],
                    )
                    yield db
                except BaseException:
                    # SQLite itself rolls back where the disk is full or fails.
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")

    @staticmethod
    def _forget(db: sqlite3.Connection, pairs: Iterable[TextPair]) -> None:
        keys = [(pair.dataset, pair.pair_id) for pair in pairs]
        for table in ("result", "curve"):
            db.executemany(f"DELETE FROM {table} WHERE dataset = ? AND pair_id = ?", keys)


def _curve(data: bytes) -> Array | None:
    points = unpack_floats(data)
    return points if points is not None and len(points) == N_BINS else None


def _variant(method: Method) -> str:
    return ", ".join(f"{name}={value}" for name, value in method.curve_params.items())


def _insert_curves(
    db: sqlite3.Connection, method: Method, curves: Iterable[tuple[TextPair, Array]]
) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO curve VALUES (?, ?, ?, ?)",
        [(_variant(method), p.dataset, p.pair_id, pack_floats(c)) for p, c in curves],
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what a disk can do wrong into one sentence."""
    try:
        yield
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        text = str(error).lower()
        if "full" in text or getattr(error, "errno", None) == 28:
            reason = "the disk is full: free some space"
        elif isinstance(error, UnicodeDecodeError) or (
            isinstance(error, sqlite3.DatabaseError)
            and ("not a database" in text or "malformed" in text)
        ):
            reason = f"{path.name} is damaged or not a cache file: move it away"
        elif "locked" in text:
            reason = "another process holds it: wait for that to finish"
        else:
            reason = "it cannot be read or written: check its rights, or set POSLENS_HOME"
        raise UserError(f"The cache could not be used, since {reason}.") from error
