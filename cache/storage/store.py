"""The store of attributions: one SQLite file for each model fingerprint and method.

Each put is one transaction, so a result is stored completely or not at all, even if a process dies.
Per-token results are stored once under the method's `core` as compressed rows. The same file
contains blocks of summaries and curves (blocks.py), so that lists and aggregates never read the
results. Curves with another normalization, resampling or axis are derived from the results and
stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poslens.attribution.curves.positions import positions
from poslens.attribution.types import N_BINS, Array, Attribution, Method, TextPair
from poslens.cache.columns import PairColumns, columns_of
from poslens.cache.keys import text_number
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import Serials, variant_params
from poslens.cache.storage.codec import DamagedPayload, decode, identity_of
from poslens.cache.storage.encoded import EncodedResults, curve_columns, encoded
from poslens.cache.storage.files import LAYOUT, Files, ModelKey
from poslens.cache.storage.index import FAILED, RESULT, BlockIndex, index_of

__all__ = ["LAYOUT", "ModelKey", "Store", "StoredCurves"]

_DERIVE_ROWS = 256
_COLUMNS = {"tokens": "tokens", "score": "scores", "truncated": "truncated"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredCurves:
    """Stored data of a set of pairs: curves [n, 100], their magnitudes [n, 100] (token
    contributions regardless of sign), scores [n] and whether the document was truncated [n], in the
    order of `pair_ids`; the positions [100] of the curves' points; and the pairs that failed.
    Curves over whole texts are NaN where the model read nothing."""

    pair_ids: tuple[str, ...]
    curves: Array
    magnitudes: Array
    scores: Array
    truncated: Array
    positions: NDArray[np.float64]
    failed: dict[str, str]

    @property
    def n_truncated(self) -> int:
        """The number of documents longer than the model's context limit."""
        return int(self.truncated.sum())


class Store(Files):
    """Attributions below one folder. Any number of threads and processes may use the same
    folder."""

    # -- one result ----------------------------------------------------------------------------

    def get(self, model: ModelKey, method: Method, pair: TextPair) -> Attribution | None:
        """The stored result, or None if there is none for exactly these texts.

        A damaged result counts as missing; it is computed and stored again.
        """
        return self.get_many(model, method, [pair])[0]

    def get_many(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair]
    ) -> list[Attribution | None]:
        """The stored result of each pair [n], read in one transaction."""
        attributions = self._get_own(model, method, pairs)
        if None in attributions:
            lacking = [
                place for place, attribution in enumerate(attributions) if attribution is None
            ]
            asked = [pairs[place] for place in lacking]
            fallback = self.read_fallback(
                model, method, lambda it: it.get_many(model, method, asked)
            )
            for place, one in zip(lacking, fallback or (), strict=False):
                attributions[place] = one
        return attributions

    def _get_own(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair]
    ) -> list[Attribution | None]:
        attributions: list[Attribution | None] = []
        with self.reading(model, method) as db:
            if db is None:
                return [None] * len(pairs)
            for pair in pairs:
                row = db.execute(
                    "SELECT data FROM payload WHERE ds = (SELECT id FROM dataset WHERE name = ?) "
                    "AND pair = ? AND text = ?",
                    (pair.dataset, pair.pair_id, text_number(pair)),
                ).fetchone()
                result = None
                if row is not None and row[0] is not None:
                    with suppress(DamagedPayload):
                        result = decode(row[0], model.name, method, pair.pair_id, identity_of(pair))
                attributions.append(result)
        return attributions

    def put(
        self,
        model: ModelKey,
        method: Method,
        results: Sequence[tuple[TextPair, Attribution]],
        failures: Sequence[tuple[TextPair, str]] = (),
    ) -> None:
        """Store results with their curves, and the reasons why other pairs failed, so that a
        resumed run doesn't retry those. One transaction, durable when this returns. Earlier results
        of the same pairs are replaced.

        Raises:
            UserError: the folder can't be written (permissions, a full disk).
        """
        done = latest(results)
        self.put_encoded(model, method, [p for p, _ in done], encoded(done, method), failures)

    def put_encoded(
        self,
        model: ModelKey,
        method: Method,
        pairs: Sequence[TextPair],
        results: EncodedResults,
        failures: Sequence[tuple[TextPair, str]] = (),
    ) -> None:
        """Store results [n] of `pairs` [n] that are already encoded, and failures, in one
        transaction; durable when this returns.

        Raises:
            UserError: the folder can't be written (permissions, a full disk).
        """
        # Built before the lock is taken, so that others wait only for the disk, not for pyarrow's
        # first conversion, which imports pandas.
        done = latest(list(zip(pairs, range(len(pairs)), strict=True)))
        if len(done) < len(pairs):
            results = results.at([place for _, place in done])
        failed = latest(failures)
        if not done and not failed:
            return
        n, columns = len(done), blocks.pair_columns([pair for pair, _ in [*done, *failed]])
        for name in ("tokens", "score", "truncated"):
            columns[name] = [*getattr(results, _COLUMNS[name]).tolist(), *columns[name][n:]]
        columns["reason"] = [*columns["reason"][:n], *(reason for _, reason in failed)]
        batch = blocks.batch_of_columns(columns)
        with self.writing(model, method) as db:
            serials = _insert(db, columns, batch, [*results.payloads, *[None] * len(failed)])
            if n:
                number = blocks.variant_number(db, variant_params(method))
                rows = blocks.curve_rows(serials[:n], results.curves, results.magnitudes)
                blocks.append_curves(db, number, rows)

    def put_failures(
        self, model: ModelKey, method: Method, failures: Sequence[tuple[TextPair, str]]
    ) -> None:
        """Store the reasons why pairs failed."""
        self.put(model, method, [], failures)

    # -- many ----------------------------------------------------------------------------------

    def missing(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], *, retry: bool = False
    ) -> list[TextPair]:
        """The pairs with neither a result nor, unless `retry`, a stored failure."""

        columns = columns_of(pairs)
        state = self._asked(model, method, lambda _, index: _states(index, columns)[1])
        missing = list(pairs)
        if state is not None:
            stored = (state == RESULT) | (state == FAILED) & (not retry)
            missing = list(compress(pairs, (~stored).tolist()))
        if not missing:
            return missing
        left = self.read_fallback(model, method, lambda it: it.missing(model, method, missing))
        return missing if left is None else left

    def curves(self, model: ModelKey, method: Method, pairs: Sequence[TextPair]) -> StoredCurves:
        """Curves of those of `pairs` that have a result, with the method's normalization and
        resampling. Curves with other settings are derived from the stored results; no model is run.
        All pairs must belong to one data set: own results and those of the fallback are joined by
        pair id."""
        asked = columns_of(pairs).once
        own = self._own_curves(model, method, asked)
        if len(own.pair_ids) == len(asked):
            return own

        def fallback(store: Store) -> StoredCurves:
            there = set(own.pair_ids)
            lacking = [pair for pair in asked.pairs if pair.pair_id not in there]
            return _joined(asked, own, store.curves(model, method, lacking)) if lacking else own

        return self.read_fallback(model, method, fallback) or own

    def _own_curves(self, model: ModelKey, method: Method, asked: PairColumns) -> StoredCurves:
        def ask(db: sqlite3.Connection, index: BlockIndex) -> tuple[StoredCurves, list[TextPair]]:
            serials, state = _states(index, asked)
            places = np.flatnonzero(state == RESULT)
            there, curves = index.curves(
                db, blocks.variants(db).get(variant_params(method), 0), serials[places]
            )
            values = places[there]
            failed = np.flatnonzero(state == FAILED).tolist()
            found = StoredCurves(
                pair_ids=tuple(asked.ids[values].tolist()),
                curves=curves.curves,
                magnitudes=curves.magnitudes,
                scores=index.column("score", serials[values]),
                truncated=index.column("truncated", serials[values]),
                positions=positions(method.curve_params["resampling"]),
                failed={asked.ids[k]: index.reasons[int(serials[k])] for k in failed},
            )
            return found, [asked.pairs[place] for place in places[~there].tolist()]

        answer = self._asked(model, method, ask)
        if answer is not None and answer[1]:
            self._derive(model, method, answer[1])
            answer = self._asked(model, method, ask)
        return _nothing(method) if answer is None else answer[0]

    def _asked(
        self, model: ModelKey, method: Method, ask: Callable[[sqlite3.Connection, BlockIndex], T]
    ) -> T | None:
        """What `ask` returns for the file and its refreshed index; None if there is no file."""
        index = index_of(self.path(model, method))
        # The lock first, so that transactions begin in the order in which the index is refreshed.
        with index.lock:
            with self.reading(model, method) as db:
                if db is None:
                    return None
                index.refresh(db)
                answer = ask(db, index)
            if not (index.damaged or index.damaged_curves):
                return answer
        # A block is corrupted: rebuild its summaries from the results.
        from poslens.cache.storage.maintenance import mend

        mend(self, model, method)
        with index.lock, self.reading(model, method) as db:
            if db is None:
                return None
            index.refresh(db)
            index.damaged.clear()
            index.damaged_curves.clear()
            return ask(db, index)

    def _derive(self, model: ModelKey, method: Method, pairs: Sequence[TextPair]) -> None:
        """Derive curves from stored results in portions, so that an interruption loses only the
        last one."""
        for start in range(0, len(pairs), _DERIVE_ROWS):
            part = pairs[start : start + _DERIVE_ROWS]
            derived: list[tuple[TextPair, Attribution]] = []
            damaged: list[TextPair] = []
            for pair, result in zip(part, self._get_own(model, method, part), strict=True):
                if result is None:
                    damaged.append(pair)
                else:
                    derived.append((pair, result))
            curves = curve_columns(derived, method)
            with self.changing(model, method) as db:
                if db is None:  # another process has just deleted it
                    return
                # Unreadable results count as missing, so that the next run computes them.
                blocks.remove(
                    db, [serial for p in damaged if (serial := serial_of(db, p)) is not None]
                )
                # Serial 0, which is never assigned, stands for a result that was just replaced or
                # removed.
                serials = np.array([serial_of(db, pair) or 0 for pair, _ in derived], np.int64)
                curve_rows = blocks.curve_rows(serials, *curves)
                number = blocks.variant_number(db, variant_params(method))
                blocks.append_curves(db, number, curve_rows.at(serials > 0))


def _nothing(method: Method) -> StoredCurves:
    curves, flags = np.zeros((0, N_BINS), np.float32), np.zeros(0, np.bool_)
    at = positions(method.curve_params["resampling"])
    return StoredCurves((), curves, curves, flags.astype(np.float32), flags, at, {})  # type: ignore[arg-type]


def _joined(asked: PairColumns, own: StoredCurves, fallback: StoredCurves) -> StoredCurves:
    """Own results and those of the fallback, in the order of `asked`. A result of the fallback
    takes precedence over an own failure."""
    if not fallback.pair_ids and not fallback.failed:
        return own
    places = {pair_id: place for place, pair_id in enumerate(asked.ids.tolist())}
    ids = own.pair_ids + fallback.pair_ids
    order = np.argsort([places[pair_id] for pair_id in ids], kind="stable")

    def both(name: str) -> NDArray[Any]:
        joined: NDArray[Any] = np.concatenate([getattr(own, name), getattr(fallback, name)])
        return joined[order]

    return StoredCurves(
        pair_ids=tuple(ids[place] for place in order.tolist()),
        curves=both("curves"),
        magnitudes=both("magnitudes"),
        scores=both("scores"),
        truncated=both("truncated"),
        positions=own.positions,
        failed={
            pair_id: reason
            for pair_id, reason in {**fallback.failed, **own.failed}.items()
            if pair_id not in set(fallback.pair_ids)
        },
    )


# -- rows ------------------------------------------------------------------------------------------


def _insert(
    db: sqlite3.Connection,
    columns: Mapping[str, Sequence[Any]],
    batch: pa.RecordBatch,
    data: Sequence[bytes | None],
) -> Serials:
    """Insert payloads (None for failures) and their block, replacing what was stored of the pairs.
    Returns their serials [n]."""
    first = blocks.next_serial(db)
    numbers = {name: blocks.dataset_number(db, name) for name in set(columns["dataset"])}
    keys = [
        (numbers[name], pair)
        for name, pair in zip(columns["dataset"], columns["pair"], strict=True)
    ]
    dead = []
    for key in keys:
        if found := db.execute("SELECT id FROM payload WHERE ds = ? AND pair = ?", key).fetchone():
            dead.append(found[0])
    db.executemany("DELETE FROM payload WHERE id = ?", [(serial,) for serial in dead])
    rows = zip(keys, columns["text"], columns["reason"], data, strict=True)
    db.executemany(
        "INSERT INTO payload (id, ds, pair, text, reason, data) VALUES (?, ?, ?, ?, ?, ?)",
        [(first + k, *key, *row) for k, (key, *row) in enumerate(rows)],
    )
    blocks.append(db, first, batch, dead)
    return np.arange(first, first + len(keys), dtype=np.int64)


def latest(rows: Sequence[tuple[TextPair, T]]) -> list[tuple[TextPair, T]]:
    """The last row of each pair; earlier ones are superseded."""
    return list({(pair.dataset, pair.pair_id): (pair, row) for pair, row in rows}.values())


def serial_of(db: sqlite3.Connection, pair: TextPair) -> int | None:
    """The serial of what is stored for exactly these texts; None if there is nothing."""
    row = db.execute(
        "SELECT id FROM payload WHERE ds = (SELECT id FROM dataset WHERE name = ?) AND pair = ? "
        "AND text = ?",
        (pair.dataset, pair.pair_id, text_number(pair)),
    ).fetchone()
    return row[0] if row else None


# -- the index ------------------------------------------------------------------------------------


def _states(index: BlockIndex, pairs: PairColumns) -> tuple[Serials, NDArray[np.int8]]:
    """The latest serial of each pair [n], 0 for none, and its state [n]: absent, result or failed.
    What is stored of other texts counts as absent."""
    serials = index.serials(pairs)
    same = index.column("text", serials) == pairs.texts
    return serials, np.where(same, index.state[serials], 0).astype(np.int8)
