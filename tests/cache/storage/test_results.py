"""Results of any kind: repeated reading equals reading in a new process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poslens.attribution.types import Method, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage import results
from poslens.cache.storage.files import Files
from poslens.cache.storage.results import rows_of
from poslens.cache.storage.schema import Owner, Schema
from poslens.cache.storage.store import ModelKey, Store
from tests.support.counts import Count, counts

MODEL, METHOD = ModelKey("m", "0" * 16), Method("test", {"version": 1})
PAIRS = [TextPair(f"p{i}", "q", f"document {i}", dataset="ab"[i % 2]) for i in range(12)]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], results.Stored]:
    """Reads like a process that has read nothing yet."""

    def read(root: Path) -> results.Stored:
        with monkeypatch.context() as patch:
            patch.setattr(results, "_DECODED", LRUCache(1 << 20, weigh=lambda kept: len(kept[0])))
            patch.setattr(results, "_ROWS", LRUCache(1 << 20, weigh=lambda rows: rows.size))
            return counts(root).select(MODEL, METHOD, PAIRS)

    return read


def test_rereading_equals_reading_in_a_new_process(
    fresh: Callable[[Path], results.Stored], tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    store = counts(tmp_path)
    expected: dict[str, Count] = {}
    failures: dict[str, str] = {}
    for step in range(60):
        pair = PAIRS[generator.integers(len(PAIRS))]
        expected.pop(pair.pair_id, None)
        failures.pop(pair.pair_id, None)
        what = generator.integers(4)
        if what == 0:
            store.put_failures(MODEL, METHOD, [(pair, f"because {step}")])
            failures[pair.pair_id] = f"because {step}"
        elif what == 1:  # damaged: counts as missing
            store._put(MODEL, METHOD, [(pair, None, b"\0\0\0\0{}")])
        else:
            store.put(MODEL, METHOD, [(pair, Count(step))])
            expected[pair.pair_id] = Count(step)
        found = store.select(MODEL, METHOD, PAIRS)
        assert found == fresh(tmp_path)
        assert (found.results, found.failed) == (expected, failures)
        assert list(found.results) == [p.pair_id for p in PAIRS if p.pair_id in expected]
    missing = [p.pair_id for p in store.missing(MODEL, METHOD, PAIRS)]
    assert missing == [p.pair_id for p in PAIRS if p.pair_id not in expected | failures]
    retried = {p.pair_id for p in store.missing(MODEL, METHOD, PAIRS, retry=True)}
    assert retried == {p.pair_id for p in PAIRS} - set(expected)
    with Store(tmp_path).writing(MODEL, METHOD) as db:
        db.execute("DELETE FROM result")
    assert store.select(MODEL, METHOD, PAIRS).results == fresh(tmp_path).results == {}


def test_files_are_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(files: Files, model: ModelKey, method: Method, kind: str, keys: Any) -> Any:
        reads.append(len(keys))
        return rows_of(files, model, method, kind, keys)

    monkeypatch.setattr(results, "rows_of", counted)
    store = counts(tmp_path)
    for number in range(3):
        store.put(MODEL, METHOD, [(PAIRS[number], Count(number))])
        # Files that have just changed are always read, since the next change may have the same
        # time.
        time.sleep(0.1)
        for _ in range(2):
            stored = store.select(MODEL, METHOD, PAIRS)
            assert list(stored.results.values()) == [Count(n) for n in range(number + 1)]
            assert store.missing(MODEL, METHOD, PAIRS) == PAIRS[number + 1 :]
        assert len(reads) == number + 1
    time.sleep(0.1)
    with Store(tmp_path).writing(MODEL, METHOD) as db:  # as by another process
        db.execute("DELETE FROM result")
    assert store.missing(MODEL, METHOD, PAIRS) == PAIRS


def test_only_new_results_are_decoded(tmp_path: Path) -> None:
    decoded: list[int] = []

    class Counting(Schema[Count]):
        def unpack(self, found: dict[str, Any], owner: Owner) -> Count:
            decoded.append(found["n"])
            return super().unpack(found, owner)

    store = counts(tmp_path, Counting(Count, "test"))
    store.put(MODEL, METHOD, [(pair, Count(number)) for number, pair in enumerate(PAIRS)])
    for _ in range(3):
        assert len(store.select(MODEL, METHOD, PAIRS).results) == len(PAIRS)
    assert sorted(decoded) == list(range(12))
    store.put(MODEL, METHOD, [(PAIRS[3], Count(99))])
    counts(tmp_path, Counting(Count, "test")).select(MODEL, METHOD, PAIRS)
    assert decoded[12:] == [99]
    other = Method("test", {"version": 2})
    counts(tmp_path / "other").put(MODEL, METHOD, [(PAIRS[0], Count(7))])
    assert counts(tmp_path / "other").select(MODEL, METHOD, PAIRS).results == {"p0": Count(7)}
    assert store.select(MODEL, other, PAIRS).results == {}


def test_more_pairs_than_one_query_may_name_are_read(tmp_path: Path) -> None:
    pairs = [TextPair(f"p{i}", "q", "d", dataset="set") for i in range(1203)]
    store = counts(tmp_path)
    store.put(MODEL, METHOD, [(pair, Count(number)) for number, pair in enumerate(pairs)])
    found = store.select(MODEL, METHOD, pairs)
    assert found.results == {f"p{i}": Count(i) for i in range(1203)}
    assert store.missing(MODEL, METHOD, pairs) == []
