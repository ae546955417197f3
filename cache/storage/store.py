"""The store of attributions: one SQLite file for each model fingerprint and method.

Each put is one transaction, so a result is stored completely or not at all, even if a process dies.
Results are compressed rows of a table (rows.py) under the method's `core`; blocks of summaries and
curves in the same file (blocks.py) keep lists and aggregates from reading them. Curves with another
normalization, resampling or axis are derived from the results and stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.positions import positions
from poslens.attribution.pairs import Pairs, columns_of
from poslens.attribution.types import N_BINS, Array, Attribution, Method, TextPair
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage import blocks, rows
from poslens.cache.storage.blocks import Ids, curve_name
from poslens.cache.storage.codec import DamagedPayload, decode, identity_of
from poslens.cache.storage.encoded import Computed, Destination, curve_columns
from poslens.cache.storage.files import LAYOUT, Files, ModelKey
from poslens.cache.storage.index import FAILED, RESULT, BlockIndex, index_of
from poslens.cache.storage.rows import ATTRIBUTION, Key

__all__ = ["LAYOUT", "ModelKey", "Store", "StoredCurves"]

_DERIVE_ROWS = 256
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

    def rows_of_both(self, other: StoredCurves) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows [m] of the pairs that both have, in this order of pairs: of these curves, and of
        `other`."""
        row_of = {pair_id: row for row, pair_id in enumerate(other.pair_ids)}
        both = [(row, row_of[i]) for row, i in enumerate(self.pair_ids) if i in row_of]
        rows, other_rows = np.array(both, dtype=np.int64).reshape(-1, 2).T
        return rows, other_rows


class Store(Files, Destination):
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
        with self.reading(model, method) as db:
            stored = {} if db is None else rows.select(db, ATTRIBUTION, map(_key, pairs))
        attributions = [
            None
            if (row := stored.get(_key(pair))) is None or row.payload is None
            else _decoded(row.payload, model, method, pair)
            for pair in pairs
        ]
        lacking = [place for place, stored in enumerate(attributions) if stored is None]
        if lacking:
            asked = [pairs[place] for place in lacking]
            fallback = self.read_fallback(
                model, method, lambda it: it.get_many(model, method, asked)
            )
            for place, attribution in zip(lacking, fallback or (), strict=False):
                attributions[place] = attribution
        return attributions

    def put_encoded(self, model: ModelKey, method: Method, computed: Computed) -> None:
        """Store results, failures and curves in one transaction. Earlier results of the same pairs
        are replaced."""
        # Built before the lock is taken, so that others wait only for the disk, not for pyarrow's
        # first conversion, which imports pandas.
        appended = rows.attribution_rows(method, computed)
        if appended.num_rows:
            with self.writing(model, method) as db:
                rows.append(db, appended, computed.all_payloads)

    # -- many ----------------------------------------------------------------------------------

    def missing(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], *, retry: bool = False
    ) -> list[TextPair]:
        """The pairs with neither a result nor, unless `retry`, a stored failure."""

        columns = columns_of(pairs)
        state = self._asked(model, method, lambda _, index: _states(index, columns)[1])
        if state is not None:
            stored = (state == RESULT) | (state == FAILED) & (not retry)
            columns = columns.select(~stored)
        missing = list(columns)
        if not missing:
            return missing
        left = self.read_fallback(
            model, method, lambda it: it.missing(model, method, missing, retry=retry)
        )
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
            lacking = [pair for pair in asked if pair.pair_id not in there]
            return _joined(asked, own, store.curves(model, method, lacking)) if lacking else own

        return self.read_fallback(model, method, fallback) or own

    # -- curves --------------------------------------------------------------------------------

    def _own_curves(self, model: ModelKey, method: Method, asked: Pairs) -> StoredCurves:
        def ask(db: sqlite3.Connection, index: BlockIndex) -> tuple[StoredCurves, list[TextPair]]:
            ids, state = _states(index, asked)
            places = np.flatnonzero(state == RESULT)
            there, curves, magnitudes = index.curves(db, curve_name(method), ids[places])
            values = places[there]
            failed = np.flatnonzero(state == FAILED).tolist()
            stored = StoredCurves(
                pair_ids=tuple(asked.ids[values].tolist()),
                curves=curves,
                magnitudes=magnitudes,
                scores=index.column("score", ids[values]),
                truncated=index.column("truncated", ids[values]),
                positions=positions(method.curve_params["resampling"]),
                failed={asked.ids[k]: index.reasons[int(ids[k])] for k in failed},
            )
            return stored, [asked[place] for place in places[~there].tolist()]

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
        for repaired in (False, True):
            # The lock first, so that transactions begin in the order in which the index is
            # refreshed.
            with index.lock, self.reading(model, method) as db:
                if db is None:
                    return None
                index.refresh(db)
                answer, damaged = ask(db, index), index.damaged
            if repaired or not damaged:
                break
            # A block is corrupted: rebuild it from the results.
            from poslens.cache.storage.maintenance import repair

            repair(self, model, method)
        return answer

    def _derive(self, model: ModelKey, method: Method, pairs: Sequence[TextPair]) -> None:
        """Derive curves from stored results in portions, so that an interruption loses only the
        last one."""
        damaged: list[int] = []
        for start in range(0, len(pairs), _DERIVE_ROWS):
            ids: list[int] = []
            derived: list[tuple[TextPair, Attribution]] = []
            portion = pairs[start : start + _DERIVE_ROWS]
            with self.reading(model, method) as db:
                if db is None:
                    return
                epoch = blocks.epoch(db)
                stored = rows.select(db, ATTRIBUTION, map(_key, portion))
            for pair in portion:
                if (row := stored.get(_key(pair))) is None or row.payload is None:
                    continue
                if (result := _decoded(row.payload, model, method, pair)) is None:
                    damaged.append(row.id)
                else:
                    ids.append(row.id)
                    derived.append((pair, result))
            curves = curve_columns(derived, method)
            with self.changing(model, method) as db:
                # Ids of another epoch may belong to other results.
                if db is None or blocks.epoch(db) != epoch:
                    return
                blocks.append_curves(db, curve_name(method), np.array(ids, np.int64), *curves)
        if damaged:
            from poslens.cache.storage.maintenance import repair

            # Unreadable results count as missing, so that the next run computes them.
            repair(self, model, method, damaged)


def _key(pair: TextPair) -> Key:
    return Key(pair.dataset, pair.pair_id, text_fingerprint(pair))


def _decoded(payload: bytes, model: ModelKey, method: Method, pair: TextPair) -> Attribution | None:
    with suppress(DamagedPayload):
        return decode(payload, model.name, method, pair.pair_id, identity_of(pair))
    return None


def _nothing(method: Method) -> StoredCurves:
    curves, flags = np.zeros((0, N_BINS), np.float32), np.zeros(0, np.bool_)
    at = positions(method.curve_params["resampling"])
    return StoredCurves((), curves, curves, flags.astype(np.float32), flags, at, {})  # type: ignore[arg-type]


def _joined(asked: Pairs, own: StoredCurves, fallback: StoredCurves) -> StoredCurves:
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


# -- the index ------------------------------------------------------------------------------------


def _states(index: BlockIndex, pairs: Pairs) -> tuple[Ids, NDArray[np.int8]]:
    """The id of each pair's last row [n], 0 for none, and its state [n]: absent, result or failed.
    Results of other texts count as absent."""
    ids = index.ids(pairs)
    same = index.column("text", ids) == pairs.texts
    return ids, np.where(same, index.state[ids], 0).astype(np.int8)
