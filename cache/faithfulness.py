"""Faithfulness results, kept in the same files as the attributions they test.

A file of the store is one model's fingerprint and one method's core; here it gets one more table,
keyed by the test's parameters and the pair, with a fingerprint of the texts and the evidence. So
a result is there whole or not at all, and a changed text, model or parameter is a miss.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attribution.errors import UserError
from attribution.faithfulness import (
    Baseline,
    Faithfulness,
    Parameters,
    Stopped,
    deletion_insertion,
)
from attribution.methods import attribute_batches
from attribution.retrievers.base import Embedded
from attribution.types import Attribution, Method, TextPair
from cache.fingerprint import text_fingerprint
from cache.precompute import Progress
from cache.store import ModelKey, Store

RANDOM_ORDER = Method("random_order")
"""Random orders are no method's own; their scores are kept under this one for all to share."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS faithfulness (
    parameters TEXT NOT NULL, dataset TEXT NOT NULL, pair_id TEXT NOT NULL, text TEXT NOT NULL,
    payload BLOB, reason TEXT, PRIMARY KEY (parameters, dataset, pair_id)) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class StoredFaithfulness:
    """What is stored of a set of pairs: results in the order asked for, and why others failed."""

    results: tuple[Faithfulness, ...]
    failed: dict[str, str]


class FaithfulnessStore:
    """Results below one folder, beside the attributions of a `Store` of the same folder. Any
    number of threads and processes may use it."""

    def __init__(self, root: Path) -> None:
        # Its files, locks and sentences for what a disk can do wrong are the store's.
        self._files = Store(root)

    def get(
        self, model: ModelKey, method: Method, parameters: Parameters, pair: TextPair
    ) -> Faithfulness | None:
        """The stored result, or None where there is none for these very texts and this evidence;
        a damaged one counts as none."""
        return _unpack(self._payload(model, method, parameters, pair), model, method, parameters)

    def select(
        self, model: ModelKey, method: Method, parameters: Parameters, pairs: Sequence[TextPair]
    ) -> StoredFaithfulness:
        """All that is stored of `pairs`, in one reading."""
        rows = self._rows(model, method, parameters)
        results, failed = [], {}
        for pair in pairs:
            payload, reason = rows.get(_key(pair), (None, None))
            if reason is not None:
                failed[pair.pair_id] = reason
            elif (found := _unpack(payload, model, method, parameters)) is not None:
                results.append(found)
        return StoredFaithfulness(tuple(results), failed)

    def put(
        self, model: ModelKey, method: Method, results: Sequence[tuple[TextPair, Faithfulness]]
    ) -> None:
        """Store results, all or none; what was there of a pair is replaced.

        Raises:
            UserError: the folder cannot be written (rights, a full disk).
        """
        rows = [(repr(found.parameters), *_key(pair), _pack(found)) for pair, found in results]
        self._put(model, method, "payload", rows)

    def put_failures(
        self,
        model: ModelKey,
        method: Method,
        parameters: Parameters,
        failures: Sequence[tuple[TextPair, str]],
    ) -> None:
        """Store why pairs have no result, so that a resumed run does not try them again."""
        rows = [(repr(parameters), *_key(pair), reason) for pair, reason in failures]
        self._put(model, method, "reason", rows)

    def missing(
        self,
        model: ModelKey,
        method: Method,
        parameters: Parameters,
        pairs: Sequence[TextPair],
        *,
        retry: bool = False,
    ) -> list[TextPair]:
        """The pairs with neither a result nor, unless `retry`, a stored failure."""
        rows = self._rows(model, method, parameters)
        stored = {key for key, (_, reason) in rows.items() if reason is None or not retry}
        return [pair for pair in pairs if _key(pair) not in stored]

    def baseline(self, model: ModelKey, parameters: Parameters, pair: TextPair) -> Baseline | None:
        """The random orders' scores that another method's test left."""
        found = _checked(self._payload(model, RANDOM_ORDER, parameters, pair))
        return None if found is None else Baseline(found["deletion"], found["insertion"])

    def put_baseline(
        self, model: ModelKey, parameters: Parameters, pair: TextPair, baseline: Baseline
    ) -> None:
        """Keep the random orders' scores for other methods."""
        row = (repr(parameters), *_key(pair), _with_checksum(_baseline(baseline)))
        self._put(model, RANDOM_ORDER, "payload", [row])

    # -- rows ----------------------------------------------------------------------------------

    def _payload(
        self, model: ModelKey, method: Method, parameters: Parameters, pair: TextPair
    ) -> bytes | None:
        with self._reading(model, method) as db:
            row = (
                db
                and db.execute(
                    "SELECT payload FROM faithfulness "
                    "WHERE parameters = ? AND dataset = ? AND pair_id = ? AND text = ?",
                    (repr(parameters), *_key(pair)),
                ).fetchone()
            )
        return row[0] if row else None

    def _rows(
        self, model: ModelKey, method: Method, parameters: Parameters
    ) -> dict[tuple[str, str, str], tuple[bytes | None, str | None]]:
        """Payload or reason by dataset, pair and text."""
        with self._reading(model, method) as db:
            found = () if db is None else db.execute(
                "SELECT dataset, pair_id, text, payload, reason FROM faithfulness "
                "WHERE parameters = ?",
                (repr(parameters),),
            )  # fmt: skip
            return {tuple(row[:3]): (row[3], row[4]) for row in found}  # type: ignore[misc]

    def _put(
        self, model: ModelKey, method: Method, column: str, rows: Sequence[tuple[str | bytes, ...]]
    ) -> None:
        with self._files.writing(model, method) as db:
            db.execute(_SCHEMA)
            db.executemany(
                f"INSERT OR REPLACE INTO faithfulness (parameters, dataset, pair_id, text, {column}"
                ") VALUES (?, ?, ?, ?, ?)",
                rows,
            )

    @contextmanager
    def _reading(self, model: ModelKey, method: Method) -> Iterator[sqlite3.Connection | None]:
        """The file, or None where it has no table of these yet."""
        with self._files.reading(model, method) as db:
            known = (
                db is not None
                and db.execute("SELECT 1 FROM sqlite_master WHERE name = 'faithfulness'").fetchone()
            )
            yield db if known else None


def run(
    retriever: Embedded,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    store: Store,
    fstore: FaithfulnessStore,
    *,
    parameters: Parameters | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    retry_failed: bool = False,
) -> Progress:
    """Test the method on what `fstore` lacks of `pairs`; stops between batches of a pair, resumes
    at any pair.

    Attributions come from `store`, which gets those it lacks; random orders that another method
    was tested against are not scored again. `turn` is entered for each pair.

    Raises:
        UserError: a store cannot be written; what was stored before stays.
    """
    settings = parameters or Parameters()
    todo = fstore.missing(model, method, settings, pairs, retry=retry_failed)
    already = len(pairs) - len(todo)
    computed = failed = 0
    started = time.perf_counter()

    def progress(stopped: bool = False) -> Progress:
        seconds = time.perf_counter() - started
        return Progress(len(pairs), already + computed, computed, failed, seconds, stopped)

    on_progress(progress())
    for pair in todo:
        if should_stop():
            return progress(stopped=True)
        baseline = fstore.baseline(model, settings, pair)
        attribution = store.get(model, method, pair)
        stored = attribution is not None
        result, reason = None, ""
        try:
            with turn():
                if attribution is None:
                    attribution, reason = _attributed(retriever, method, pair)
                if attribution is not None:
                    result = deletion_insertion(
                        retriever,
                        pair,
                        attribution,
                        **dataclasses.asdict(settings),
                        baseline=baseline,
                        should_stop=should_stop,
                    )
        except Stopped:
            return progress(stopped=True)
        except UserError as error:
            reason = str(error)
        finally:
            # Kept whatever became of the test: it is whole, and its cost is paid.
            if attribution is not None and not stored:
                store.put(model, method, [(pair, attribution)])
        if result is None:
            if attribution is None:
                store.put_failures(model, method, [(pair, reason)])
            fstore.put_failures(model, method, settings, [(pair, reason)])
            failed += 1
        else:
            fstore.put(model, method, [(pair, result)])
            if baseline is None:
                fstore.put_baseline(model, settings, pair, result.baseline)
        computed += 1
        on_progress(progress())
    return progress()


def _attributed(
    retriever: Embedded, method: Method, pair: TextPair
) -> tuple[Attribution | None, str]:
    ((outcome,),) = attribute_batches(retriever, method, [pair])
    return outcome.attribution, outcome.reason


def _key(pair: TextPair) -> tuple[str, str, str]:
    """Data set, pair and what its result depends on: the evidence too, which enrichment needs."""
    span = pair.evidence
    evidence = f"{span.start}-{span.end}" if span else ""
    return pair.dataset, pair.pair_id, f"{text_fingerprint(pair)}:{evidence}"


def _baseline(baseline: Baseline) -> dict[str, Any]:
    return {"deletion": baseline.deletion.tolist(), "insertion": baseline.insertion.tolist()}


def _pack(result: Faithfulness) -> bytes:
    return _with_checksum({
        "pair_id": result.pair_id,
        "n_units": result.n_units,
        "truncated": result.truncated,
        "deletion": result.deletion.tolist(),
        "insertion": result.insertion.tolist(),
        "baseline": _baseline(result.baseline),
        "enrichment": result.enrichment,
        "attribution_seconds": result.attribution_seconds,
        "seconds": result.seconds,
    })  # fmt: skip


def _unpack(
    payload: bytes | None, model: ModelKey, method: Method, parameters: Parameters
) -> Faithfulness | None:
    fields = _checked(payload)
    if fields is None:
        return None
    baseline = Baseline(**fields.pop("baseline"))
    return Faithfulness(
        model=model.name, method=method, parameters=parameters, baseline=baseline, **fields
    )


def _with_checksum(fields: dict[str, Any]) -> bytes:
    # A float32 written as the float64 it equals reads back bit for bit.
    text = json.dumps(fields).encode()
    return zlib.crc32(text).to_bytes(4, "big") + text


def _checked(payload: bytes | None) -> dict[str, Any] | None:
    """The fields; None where nothing is stored or it is not what was stored."""
    if payload is None or zlib.crc32(payload[4:]).to_bytes(4, "big") != payload[:4]:
        return None
    return json.loads(payload[4:])
