"""Precomputing a data set: only missing pairs, stopped anywhere, resumed with the same results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution import methods
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.curves.positions import document_curve
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.attributions import OneDevice, precompute, shard
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.storage import codec
from poslens.cache.storage.store import ModelKey, Store

METHOD = make_method("saliency")
MODEL = ModelKey("tiny-bert", "0123456789abcdef")
PAIRS = tuple(
    TextPair(
        f"p{n:02}", "tide " * (n % 3 + 1), "the Moon pulls water " * (3 * n + 1), dataset="set"
    )
    for n in range(12)
)
FAILING = TextPair("bad", "\u200b", "the Moon", dataset="set")


@pytest.fixture(scope="module")
def retriever(tiny: Callable[..., DenseRetriever]) -> DenseRetriever:
    return tiny("bert")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the computed pairs, in order."""
    seen: list[str] = []

    def counting(retriever, method, part):
        results = attribute(retriever, method, part)
        seen.extend(pair.pair_id for pair in part)
        return results

    entry = dataclasses.replace(methods.METHODS["saliency"], compute=counting)
    monkeypatch.setitem(methods.METHODS, "saliency", entry)
    return seen


def device(retriever: DenseRetriever, method: Method = METHOD, **options) -> OneDevice:
    """One device with batches of at most four pairs."""
    return OneDevice(retriever, method, max_tokens=4 * retriever.max_length, **options)


def ids(pairs) -> list[str]:
    return sorted(pair.pair_id for pair in pairs)


def test_everything_is_computed_once(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    steps: list[Progress] = []
    told = RunOptions(on_progress=steps.append)
    last = precompute(device(retriever), MODEL, METHOD, PAIRS, store, options=told)
    assert sorted(computed) == ids(PAIRS)
    assert (last.total, last.done, last.computed, last.failed) == (12, 12, 12, 0)
    assert not last.stopped and store.missing(MODEL, METHOD, PAIRS) == []
    for pair in PAIRS:
        (alone,) = attribute(retriever, METHOD, [pair])
        found = store.get(MODEL, METHOD, pair)
        assert found is not None and found.document == alone.document
        np.testing.assert_allclose(found.document_scores, alone.document_scores, rtol=1e-4)
    computed.clear()
    again = precompute(device(retriever), MODEL, METHOD, PAIRS, store)
    assert computed == [] and (again.total, again.done, again.computed) == (12, 12, 0)
    assert again.rate is None and again.remaining_seconds is None and not again.stopped


def test_progress_reaches_the_total(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    store.put(MODEL, METHOD, [(PAIRS[0], attribute(retriever, METHOD, [PAIRS[0]])[0])])
    steps: list[Progress] = []
    told = RunOptions(on_progress=steps.append)
    precompute(device(retriever), MODEL, METHOD, PAIRS, store, options=told)
    assert (steps[0].done, steps[0].computed, steps[0].total) == (1, 0, 12)
    assert steps[0].rate is None
    assert len(steps) >= 4, "told after each batch"
    done = [step.done for step in steps]
    assert done == sorted(set(done)) and done[-1] == 12
    assert all(step.computed == step.done - 1 for step in steps)
    assert all(a.seconds <= b.seconds for a, b in pairwise(steps))
    last = steps[-1]
    assert last.rate == pytest.approx(11 / last.seconds) and last.remaining_seconds == 0


def test_time_estimates_ignore_cached_results() -> None:
    progress = Progress(total=100, done=60, computed=10, failed=1, seconds=5.0)
    assert progress.rate == 2.0 and progress.remaining_seconds == 20.0


def test_each_batch_is_stored_before_progress_is_reported(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    def check(step: Progress) -> None:
        # Another connection sees as many results as were reported.
        assert len(PAIRS) - len(Store(store.root).missing(MODEL, METHOD, PAIRS)) == step.done

    told = RunOptions(on_progress=check)
    precompute(device(retriever), MODEL, METHOD, PAIRS, store, options=told)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_resumed_run_gives_the_same_curves(
    retriever: DenseRetriever, store: Store, tmp_path: Path, computed: list[str], batches: int
) -> None:
    whole = Store(tmp_path / "whole")
    precompute(device(retriever), MODEL, METHOD, PAIRS, whole)
    computed.clear()
    stored: list[int] = []  # once at the start, and after each batch
    told = RunOptions(lambda progress: stored.append(progress.done))
    with stoppable(lambda: len(stored) > batches):
        first = precompute(device(retriever), MODEL, METHOD, PAIRS, store, options=told)
    assert first.stopped and first.done == first.computed == len(computed) < 12
    assert (len(computed) > 0) == (batches > 0)
    before = list(computed)
    assert ids(store.missing(MODEL, METHOD, PAIRS)) == sorted(set(ids(PAIRS)) - set(before))
    second = precompute(device(retriever), MODEL, METHOD, PAIRS, store)
    assert not second.stopped and second.done == 12 and second.computed == 12 - len(before)
    assert sorted(computed) == ids(PAIRS), "computed twice"
    for options in ({}, {"resampling": "point"}, {"normalization": "max"}):
        method = make_method("saliency", options)
        one, other = (s.curves(MODEL, method, PAIRS) for s in (store, whole))
        assert one.pair_ids == other.pair_ids == tuple(ids(PAIRS))
        # The rest was split into other batches, so results are equal up to rounding of padding.
        np.testing.assert_allclose(one.curves, other.curves, atol=1e-5)
        assert one.n_truncated == other.n_truncated > 0


def test_a_crashed_run_keeps_its_results(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    def dies(step: Progress) -> None:
        if step.computed:
            raise KeyboardInterrupt

    told = RunOptions(on_progress=dies)
    with pytest.raises(KeyboardInterrupt):
        precompute(device(retriever), MODEL, METHOD, PAIRS, store, options=told)
    before = list(computed)
    assert 0 < len(before) < 12
    precompute(device(retriever), MODEL, METHOD, PAIRS, store)
    assert sorted(computed) == ids(PAIRS)


def test_failures_are_counted_stored_and_retried_on_request(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    pairs = [*PAIRS[:5], FAILING]
    last = precompute(device(retriever), MODEL, METHOD, pairs, store)
    assert (last.total, last.done, last.computed, last.failed) == (6, 6, 6, 1)
    found = store.curves(MODEL, METHOD, pairs)
    assert found.pair_ids == tuple(p.pair_id for p in PAIRS[:5])
    assert list(found.failed) == ["bad"] and "reads no word of the query" in found.failed["bad"]
    for pair, curve in zip(PAIRS, found.curves, strict=False):
        (alone,) = attribute(retriever, METHOD, [pair])
        np.testing.assert_allclose(curve, document_curve(alone, METHOD), atol=1e-4)
    resumed = precompute(device(retriever), MODEL, METHOD, pairs, store)
    assert (resumed.computed, resumed.failed) == (0, 0)
    retrying = RunOptions(retry_failed=True)
    again = precompute(device(retriever), MODEL, METHOD, pairs, store, options=retrying)
    assert (again.computed, again.failed, again.done) == (1, 1, 6)


def test_a_result_too_large_to_store_is_recorded_as_a_failed_pair(
    retriever: DenseRetriever, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest pairs come first, so a run that fails there would fail at every start."""
    pairs = PAIRS[:6]
    precompute(device(retriever), MODEL, METHOD, pairs, store)
    sizes = []
    for pair in pairs:
        result = store.get(MODEL, METHOD, pair)
        assert result is not None
        data = codec.encode(result, pair)
        sizes.append(len(codec.uncompressed(data, codec.identity_of(pair))))
    other = Store(store.root.with_name("other"))
    monkeypatch.setattr(codec, "MAX_RAW", sorted(sizes)[-2])
    done = precompute(device(retriever), MODEL, METHOD, pairs, other)
    assert (done.done, done.failed) == (6, 1)
    kept = other.curves(MODEL, METHOD, pairs)
    assert kept.pair_ids == tuple(ids(pairs[:5]))
    assert np.array_equal(kept.curves, store.curves(MODEL, METHOD, pairs[:5]).curves)
    assert "without the matrix" in kept.failed["p05"]


def test_another_resampling_computes_nothing(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    precompute(device(retriever), MODEL, METHOD, PAIRS, store)
    computed.clear()
    point = make_method("saliency", {"resampling": "point"})
    assert precompute(device(retriever, point), MODEL, point, PAIRS, store).computed == 0
    assert computed == [] and len(store.curves(MODEL, point, PAIRS).pair_ids) == 12


def test_the_device_slot_is_held_only_while_computing(
    retriever: DenseRetriever, store: Store, monkeypatch: pytest.MonkeyPatch, computed: list[str]
) -> None:
    """The device slot is taken for each batch and released before writing to disk."""
    inside: list[bool] = [False]
    turns: list[int] = []

    @contextmanager
    def device_slot():
        assert not inside[0]
        inside[0] = True
        turns.append(1)
        yield
        inside[0] = False

    real = store.put_encoded
    stored: list[bool] = []

    class Watched(Store):
        def put_encoded(self, *args, **kwargs):
            stored.append(inside[0])
            return real(*args, **kwargs)

    precompute(
        device(retriever, device_slot=device_slot), MODEL, METHOD, PAIRS, Watched(store.root)
    )
    assert len(turns) >= len(stored) >= 3 and not any(stored) and not inside[0]


def test_a_store_that_cannot_be_written_is_reported_in_one_sentence(
    retriever: DenseRetriever, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match=r"^The cache can't be used"):
        precompute(device(retriever), MODEL, METHOD, PAIRS[:2], Store(tmp_path / "cache"))


def test_a_run_without_pairs_does_nothing(retriever: DenseRetriever, store: Store) -> None:
    last = precompute(device(retriever), MODEL, METHOD, [], store)
    assert (last.total, last.done, last.stopped) == (0, 0, False)
    assert not store.root.exists()


def test_a_damaged_result_is_computed_again(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    """As documented in Store.get for a damaged result that something has tried to read."""
    import sqlite3

    precompute(device(retriever), MODEL, METHOD, PAIRS, store)
    computed.clear()
    with sqlite3.connect(store.path(MODEL, METHOD)) as db:
        db.execute("UPDATE result SET payload = x'00' WHERE item = 'p03'")
    db.close()
    point = make_method("saliency", {"resampling": "point"})
    store.curves(MODEL, point, PAIRS)
    assert store.get(MODEL, point, PAIRS[3]) is None
    precompute(device(retriever, point), MODEL, point, PAIRS, store)
    assert computed == ["p03"]
    assert len(store.curves(MODEL, point, PAIRS).pair_ids) == 12


def test_shards_contain_each_pair_once_and_keep_documents_together() -> None:
    pairs = [TextPair(f"p{n}", f"q{n}", f"d{n // 3}", dataset="s") for n in range(90)]
    parts = [shard(pairs, number, 4) for number in range(1, 5)]
    assert sorted(p.pair_id for part in parts for p in part) == sorted(p.pair_id for p in pairs)
    documents = [{pair.document for pair in part} for part in parts]
    assert sum(map(len, documents)) == 30 and all(documents)
    assert shard(pairs, 1, 1) == pairs and shard(pairs[::-1], 2, 4) == parts[1][::-1]
    with pytest.raises(UserError, match="no shard 5 of 4"):
        shard(pairs, 5, 4)
