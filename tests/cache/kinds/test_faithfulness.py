"""Faithfulness results: round trips, misses, and a run that is stopped and resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import poslens.cache.kinds.faithfulness
from poslens.attribution import methods
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.faithfulness import (
    POSITION_ORDERS,
    ErasureParameters,
    Faithfulness,
    RandomOrders,
    Unit,
    position_order,
)
from poslens.attribution.methods import make_method
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.faithfulness import (
    RANDOM_ORDER,
    faithfulness_tests,
    run,
    stored_random_orders,
)
from poslens.cache.storage.maintenance import listing
from poslens.cache.storage.results import Results, Stored
from poslens.cache.storage.store import ModelKey, Store

METHOD = make_method("saliency")
OTHER = make_method("input_x_gradient")
MODEL = ModelKey("tiny-bert", "0123456789abcdef")
FEW = ErasureParameters(n_random=2)
PAIRS = tuple(
    TextPair(f"p{n}", "tide", "the Moon pulls water " * (n + 1), EvidenceSpan(4, 8), dataset="set")
    for n in range(4)
)
FAILING = TextPair("bad", "\u200b", "the Moon", dataset="set")


@pytest.fixture(scope="module")
def retriever(tiny: Callable[..., DenseRetriever]) -> DenseRetriever:
    return tiny("bert")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was computed, in order: `a` and the pair for attributions, `f` for tests, `b` for tests
    that also scored random orders."""
    seen: list[str] = []
    real = poslens.cache.kinds.faithfulness.deletion_insertion

    def attributing(retriever, method, part):
        seen.extend(f"a-{pair.pair_id}" for pair in part)
        return attribute(retriever, method, part)

    def testing(retriever, pair, **options):
        result = real(retriever, pair, **options)
        seen.append(f"{'b' if options['random_orders'] is None else 'f'}-{pair.pair_id}")
        return result

    entry = dataclasses.replace(methods.METHODS["saliency"], compute=attributing)
    monkeypatch.setitem(methods.METHODS, "saliency", entry)
    monkeypatch.setattr(poslens.cache.kinds.faithfulness, "deletion_insertion", testing)
    return seen


def made(
    pair_id: str, method=METHOD, parameters: ErasureParameters = FEW, **changes
) -> Faithfulness:
    """A result with random numbers seeded by its pair's id, without a model."""
    generator = np.random.default_rng(list(pair_id.encode()))
    shape = (parameters.n_random, len(parameters.fractions))
    fields = {
        "model": MODEL.name,
        "method": method,
        "pair_id": pair_id,
        "parameters": parameters,
        "n_units": 40,
        "truncated": True,
        "deletion": generator.normal(size=shape[1]),
        "insertion": generator.normal(size=shape[1]),
        "random_orders": RandomOrders(generator.normal(size=shape), generator.normal(size=shape)),
        "enrichment": float(generator.random()),
        "attribution_seconds": generator.random(),
        "seconds": generator.random(),
    }
    return Faithfulness(**{**fields, **changes})


def flat(result: Faithfulness | None) -> list[object]:
    """All of its contents, in a comparable form."""
    assert result is not None
    return [
        value.tobytes()
        if isinstance(value, np.ndarray)
        else (value.deletion.tobytes(), value.insertion.tobytes())
        if isinstance(value, RandomOrders)
        else value
        for value in (getattr(result, name) for name in Faithfulness.__slots__)
    ]


def kept(store: Store) -> Results[TextPair, Faithfulness]:
    """The stored results of the usual method and parameters."""
    return faithfulness_tests(store.root, FEW)


def sql(store: Store, statement: str, *parameters: object) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(store.path(MODEL, METHOD))) as db, db:
        return db.execute(statement, parameters).fetchall()


# -- the store -----------------------------------------------------------------------------------


def test_stored_results_are_read_back_bit_for_bit(store: Store) -> None:
    for n, changes in enumerate([{}, {"enrichment": None, "truncated": False}]):
        result = made(f"p{n}", **changes)
        kept(store).put(MODEL, METHOD, [(PAIRS[n], result)])
        found = kept(store).get(MODEL, METHOD, PAIRS[n])
        assert flat(found) == flat(result)


def test_an_empty_store_and_a_missing_table_are_misses(
    store: Store, retriever: DenseRetriever
) -> None:
    for _ in range(2):
        assert kept(store).get(MODEL, METHOD, PAIRS[0]) is None
        assert stored_random_orders(store.root, FEW).get(MODEL, RANDOM_ORDER, PAIRS[0]) is None
        assert kept(store).missing(MODEL, METHOD, PAIRS) == list(PAIRS)
        assert kept(store).select(MODEL, METHOD, PAIRS) == Stored({}, {})
        # Now a file that contains only attributions.
        store.put(MODEL, METHOD, [(PAIRS[0], attribute(retriever, METHOD, [PAIRS[0]])[0])])


def test_any_other_key_is_a_miss(store: Store) -> None:
    pair = PAIRS[0]
    kept(store).put(MODEL, METHOD, [(pair, made("p0"))])
    assert kept(store).get(MODEL, METHOD, pair) is not None
    changes: list[dict[str, object]] = [
        {"query": "tides"},
        {"document": pair.document + "."},
        {"evidence": EvidenceSpan(4, 9)},
        {"evidence": None},
        {"pair_id": "q0"},
        {"dataset": "other"},
    ]
    for change in changes:
        other = dataclasses.replace(pair, **change)  # type: ignore[arg-type]
        assert kept(store).get(MODEL, METHOD, other) is None, change
        assert kept(store).missing(MODEL, METHOD, [other]) == [other]
        assert kept(store).select(MODEL, METHOD, [other]).results == {}
    assert kept(store).get(ModelKey("tiny-bert", "f" * 16), METHOD, pair) is None
    assert kept(store).get(MODEL, OTHER, pair) is None
    others = (
        ErasureParameters(),
        ErasureParameters(n_random=2, unit="token"),
        ErasureParameters(n_random=2, seed=1),
        ErasureParameters((0.33,), n_random=2),
    )
    for parameters in others:
        assert faithfulness_tests(store.root, parameters).get(MODEL, METHOD, pair) is None
    # Another normalization or resampling of the curve is the same per-token result.
    same = make_method("saliency", {"resampling": "point"})
    found = kept(store).get(MODEL, same, pair)
    assert found is not None and found.method == same


def test_results_and_failures_replace_each_other(store: Store) -> None:
    pair = PAIRS[0]
    kept(store).put(MODEL, METHOD, [(pair, made("p0"))])
    changed = dataclasses.replace(pair, document="the water")
    other = dataclasses.replace(made("p0"), seconds=9.0)
    kept(store).put(MODEL, METHOD, [(changed, other)])
    assert kept(store).get(MODEL, METHOD, pair) is None
    assert flat(kept(store).get(MODEL, METHOD, changed)) == flat(other)
    kept(store).put_failures(MODEL, METHOD, [(changed, "no")])
    assert kept(store).get(MODEL, METHOD, changed) is None
    assert kept(store).missing(MODEL, METHOD, [changed]) == []
    assert kept(store).missing(MODEL, METHOD, [changed], retry=True) == [changed]
    assert kept(store).select(MODEL, METHOD, [changed]).failed == {"p0": "no"}
    kept(store).put(MODEL, METHOD, [(changed, made("p2"))])
    assert kept(store).select(MODEL, METHOD, [changed]).failed == {}
    assert sql(store, "SELECT count(*) FROM result WHERE kind LIKE 'other%'") == [(1,)]
    (file,) = listing(store)
    assert (file.results, file.failed) == (1, 0)


def test_a_selection_is_in_the_requested_order(store: Store) -> None:
    kept(store).put(MODEL, METHOD, [(pair, made(pair.pair_id)) for pair in PAIRS[:3]])
    wanted = [PAIRS[2], PAIRS[3], PAIRS[0]]
    found = kept(store).select(MODEL, METHOD, wanted)
    assert list(found.results) == ["p2", "p0"]
    assert flat(found.results["p0"]) == flat(made("p0"))


@pytest.mark.parametrize("damage", [b"", b"xy", b"0123{}"])
def test_a_damaged_result_counts_as_missing(store: Store, damage: bytes) -> None:
    kept(store).put(MODEL, METHOD, [(PAIRS[0], made("p0"))])
    sql(store, "UPDATE result SET payload = ? WHERE kind LIKE 'other%'", damage)
    assert kept(store).get(MODEL, METHOD, PAIRS[0]) is None
    assert kept(store).select(MODEL, METHOD, PAIRS[:1]).results == {}
    assert kept(store).missing(MODEL, METHOD, PAIRS[:1]) == [PAIRS[0]]


def test_a_put_is_all_or_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(store).put(MODEL, METHOD, [(PAIRS[0], made("p0"))])
    unkeyed = dataclasses.replace(PAIRS[2], dataset=None)  # type: ignore[arg-type]
    with pytest.raises(UserError):
        kept(store).put(MODEL, METHOD, [(PAIRS[1], made("p1")), (unkeyed, made("p2"))])
    assert sql(store, "SELECT item FROM result WHERE kind LIKE 'other%'") == [("p0",)]


def test_attributions_in_the_same_file_are_kept(store: Store, retriever: DenseRetriever) -> None:
    (attribution,) = attribute(retriever, METHOD, [PAIRS[0]])
    kept(store).put(MODEL, METHOD, [(PAIRS[0], made("p0"))])
    assert store.get(MODEL, METHOD, PAIRS[0]) is None
    store.put(MODEL, METHOD, [(PAIRS[0], attribution)])
    found = store.get(MODEL, METHOD, PAIRS[0])
    assert found is not None and found.score == attribution.score
    assert flat(kept(store).get(MODEL, METHOD, PAIRS[0])) == flat(made("p0"))


# -- runs ----------------------------------------------------------------------------------------


def test_everything_is_computed_once(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    (first,) = attribute(retriever, METHOD, [PAIRS[1]])
    store.put(MODEL, METHOD, [(PAIRS[1], first)])
    steps: list[Progress] = []
    told = RunOptions(on_progress=steps.append)
    last = run(retriever, MODEL, METHOD, PAIRS, store, parameters=FEW, options=told)
    assert computed == ["a-p0", "b-p0", "b-p1", "a-p2", "b-p2", "a-p3", "b-p3"]
    assert [step.done for step in steps] == [0, 1, 2, 3, 4]
    assert (last.total, last.done, last.computed, last.failed) == (4, 4, 4, 0) and not last.stopped
    assert store.missing(MODEL, METHOD, PAIRS) == []
    results = kept(store).select(MODEL, METHOD, PAIRS).results
    assert list(results) == [p.pair_id for p in PAIRS]
    assert all(r.n_units == 4 * (n + 1) for n, r in enumerate(results.values()))
    assert results["p1"].attribution_seconds == first.seconds
    computed.clear()
    again = run(retriever, MODEL, METHOD, PAIRS, store, parameters=FEW)
    assert computed == [] and (again.done, again.computed) == (4, 0)


def test_methods_share_random_orders(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    run(retriever, MODEL, METHOD, PAIRS[:2], store, parameters=FEW)
    computed.clear()
    run(retriever, MODEL, OTHER, PAIRS[:3], store, parameters=FEW)
    assert computed == ["f-p0", "f-p1", "b-p2"]
    one, other = (kept(store).get(MODEL, m, PAIRS[0]) for m in (METHOD, OTHER))
    assert one is not None and other is not None
    assert one.random_orders.deletion.tobytes() == other.random_orders.deletion.tobytes()
    assert one.random == other.random and one.measures != other.measures
    # Orders by position use them, too.
    for start in POSITION_ORDERS:
        run(retriever, MODEL, position_order(start), PAIRS[:3], store, parameters=FEW)
        by_position = kept(store).select(MODEL, position_order(start), PAIRS)
        assert list(by_position.results) == ["p0", "p1", "p2"]
        first = by_position.results["p0"]
        assert first.random_orders.deletion.tobytes() == one.random_orders.deletion.tobytes()
        assert (first.score, first.baseline) == (one.score, one.baseline)
    # Other parameters, other orders.
    computed.clear()
    run(retriever, MODEL, OTHER, PAIRS[:1], store, parameters=ErasureParameters(n_random=3))
    assert computed == ["b-p0"]


def test_an_order_by_position_scores_the_random_orders_that_are_missing(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    front = position_order("front")
    run(retriever, MODEL, front, PAIRS[:1], store, parameters=FEW)
    run(retriever, MODEL, METHOD, PAIRS[:1], store, parameters=FEW)
    assert computed == ["a-p0", "f-p0"]
    first, other = (kept(store).get(MODEL, method, PAIRS[0]) for method in (front, METHOD))
    assert first is not None and other is not None
    assert first.random_orders.deletion.tobytes() == other.random_orders.deletion.tobytes()


@pytest.mark.parametrize(("attributed", "tested"), [(0, 0), (1, 0), (1, 1), (3, 2), (4, 3)])
def test_a_resumed_run_gives_the_same_results(
    retriever: DenseRetriever,
    store: Store,
    tmp_path: Path,
    computed: list[str],
    attributed: int,
    tested: int,
) -> None:
    whole = Store(tmp_path / "whole")
    run(retriever, MODEL, METHOD, PAIRS, whole, parameters=FEW)
    computed.clear()

    def missing() -> tuple[int, int]:
        return tuple(len(s.missing(MODEL, METHOD, PAIRS)) for s in (store, kept(store)))

    # A finished attribution is kept, though its test was not finished.
    left = 4 - attributed, 4 - tested
    with stoppable(lambda: missing() == left):
        first = run(retriever, MODEL, METHOD, PAIRS, store, parameters=FEW)
    assert first.stopped and first.done == first.computed == tested
    assert missing() == left
    second = run(retriever, MODEL, METHOD, PAIRS, store, parameters=FEW)
    assert not second.stopped and second.done == 4
    assert sorted(computed) == sorted(f"{k}-p{n}" for k in "ab" for n in range(4)), "twice"
    for pair in PAIRS:
        one, other = (kept(s).get(MODEL, METHOD, pair) for s in (store, whole))
        assert one is not None and other is not None
        assert one.deletion.tobytes() == other.deletion.tobytes()
        assert one.measures == other.measures and one.random == other.random


def test_a_changed_text_is_computed_again(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    run(retriever, MODEL, METHOD, PAIRS[:2], store, parameters=FEW)
    computed.clear()
    changed = dataclasses.replace(PAIRS[0], document="the water pulls the Moon nearer")
    run(retriever, MODEL, METHOD, [changed, PAIRS[1]], store, parameters=FEW)
    assert computed == ["a-p0", "b-p0"]
    found = kept(store).get(MODEL, METHOD, changed)
    assert found is not None and found.n_units == 6


@pytest.mark.parametrize(("unit", "again"), [("word", []), ("sentence", ["b-p0"])])
def test_only_tests_of_sentences_depend_on_the_language(
    retriever: DenseRetriever,
    store: Store,
    computed: list[str],
    unit: Unit,
    again: list[str],
) -> None:
    parameters = dataclasses.replace(FEW, unit=unit)
    run(retriever, MODEL, METHOD, PAIRS[:1], store, parameters=parameters)
    computed.clear()
    german = dataclasses.replace(PAIRS[0], language="deu")
    run(retriever, MODEL, METHOD, [german], store, parameters=parameters)
    assert computed == again


def test_a_failure_is_stored_and_does_not_affect_other_pairs(
    retriever: DenseRetriever, store: Store, computed: list[str]
) -> None:
    pairs = [FAILING, PAIRS[0]]
    last = run(retriever, MODEL, METHOD, pairs, store, parameters=FEW)
    assert (last.done, last.failed) == (2, 1)
    assert "reads no word of the query" in kept(store).select(MODEL, METHOD, pairs).failed["bad"]
    assert store.missing(MODEL, METHOD, pairs) == []
    computed.clear()
    run(retriever, MODEL, METHOD, pairs, store, parameters=FEW)
    assert computed == []
    retrying = RunOptions(retry_failed=True)
    last = run(retriever, MODEL, METHOD, pairs, store, parameters=FEW, options=retrying)
    assert (last.done, last.computed, last.failed) == (2, 1, 1)


def test_the_device_slot_is_taken_per_pair_and_released(
    retriever: DenseRetriever, store: Store
) -> None:
    held: list[str] = []

    @contextlib.contextmanager
    def device_slot():
        assert not held
        held.append("x")
        yield
        held.clear()
        taken.append(1)

    taken: list[int] = []
    options = RunOptions(
        on_progress=lambda _: None if not held else pytest.fail("the device is held"),
        device_slot=device_slot,
    )
    run(retriever, MODEL, METHOD, PAIRS[:3], store, parameters=FEW, options=options)
    assert len(taken) == 3


def test_a_bug_is_not_recorded_as_a_failed_pair(
    retriever: DenseRetriever,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_args: object, **_options: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(poslens.cache.kinds.faithfulness, "deletion_insertion", breaks)
    with pytest.raises(RuntimeError, match="planted"):
        run(retriever, MODEL, METHOD, PAIRS[:1], store, parameters=FEW)
    assert kept(store).missing(MODEL, METHOD, PAIRS[:1]) == [PAIRS[0]]
    assert store.get(MODEL, METHOD, PAIRS[0]) is not None


def test_a_store_that_cannot_be_written_is_reported(
    retriever: DenseRetriever, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cache can't be used") as caught:
        run(
            retriever,
            MODEL,
            METHOD,
            PAIRS[:1],
            Store(tmp_path / "file"),
            parameters=FEW,
        )
    assert not isinstance(caught.value, Stopped)
