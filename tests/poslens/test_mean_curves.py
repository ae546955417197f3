"""Stored means of curves: equal to computed ones, and never stale."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.curves import made_up
from poslens.attribution import datasets
from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.curves.positions import curve_params
from poslens.attribution.curves.text_axis import over_text
from poslens.attribution.datasets import DataSet
from poslens.attribution.interventions.null_controls import (
    Control,
    ControlledCurve,
    minus_null,
    null_method,
)
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import Attribution, Method, TextPair
from poslens.cache.storage import blocks, means
from poslens.cache.storage.maintenance import compact, drop_file, listing, verify
from poslens.cache.storage.store import ModelKey, Store
from poslens.compute import mean_curves
from poslens.compute.compute import Compute
from poslens.compute.mean_curves import MeanCurves, pairs_digest
from poslens.studies.curves import null_controls
from tests.support.forked import Forked

METHOD = make_method("saliency")
MODEL = ModelKey("M", "0123456789abcdef")
N = 60


@pytest.fixture(scope="module")
def results() -> list[tuple[TextPair, Attribution]]:
    return list(made_up(N + 1))


@pytest.fixture
def store(tmp_path: Path, results: list[tuple[TextPair, Attribution]]) -> Store:
    """All results but the last."""
    store = Store(tmp_path / "cache")
    store.put(MODEL, METHOD, results[:N])
    return store


@pytest.fixture
def pairs(results: list[tuple[TextPair, Attribution]]) -> Pairs:
    return Pairs(pair for pair, _ in results)


@pytest.fixture(autouse=True)
def any_number_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean_curves, "MANY", 1)


@pytest.fixture
def averaged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of curves in each computed mean."""
    numbers: list[int] = []
    real = mean_curves.summarize

    def counting(curves: Any, *arguments: Any, **about: Any) -> CurveSummary:
        numbers.append(len(curves))
        return real(curves, *arguments, **about)

    monkeypatch.setattr(mean_curves, "summarize", counting)
    return numbers


def mean(store: Store, pairs: Sequence[TextPair]) -> CurveSummary:
    """The mean as shown by a new process."""
    return MeanCurves(Store(store.root)).of(MODEL, METHOD, pairs, "bench")[1]


def same(first: CurveSummary, second: CurveSummary) -> bool:
    def listed(summary: CurveSummary) -> str:
        return json.dumps(asdict(summary), default=lambda value: np.asarray(value).tolist())

    return listed(first) == listed(second)


def sql(store: Store, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(store.path(MODEL, METHOD))) as db, db:
        return db.execute(statement, parameters).fetchall()


def forge(store: Store, forged: dict[str, Any]) -> None:
    """Replace fields of the only stored mean, or of its curve."""
    ((name,),) = sql(store, "SELECT name FROM block WHERE name LIKE 'mean %'")
    with store.changing(MODEL, METHOD) as db:
        assert db is not None
        ((_, rows),) = blocks.read(db, name)
        assert rows is not None
        (row,) = rows.to_pylist()
        mean = json.loads(row["mean"])
        (mean if forged.keys() <= mean.keys() else mean["curve"]).update(forged)
        row["mean"] = json.dumps(mean)
        db.execute("DELETE FROM block WHERE name = ?", (name,))
        blocks.append(db, name, pa.RecordBatch.from_pylist([row], blocks.schema_of(name)))


def test_a_new_process_reads_the_mean_and_no_curve(
    store: Store, pairs: Pairs, averaged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mean(store, pairs)
    monkeypatch.setattr(Store, "curves", lambda *_: pytest.fail("the curves were read"))
    monkeypatch.setattr(Store, "missing", lambda *_: pytest.fail("the results were counted"))
    assert same(mean(store, Pairs(pairs)), first) and averaged == [N]
    assert first.curve.ci_low is not None and first.primacy_recency_index is not None
    assert MeanCurves(Store(store.root)).n_attempted(MODEL, METHOD, pairs) == N


def test_a_mean_over_whole_texts_is_read_back_with_its_gaps(
    store: Store, results: list[tuple[TextPair, Attribution]]
) -> None:
    pair, stored = results[0]
    cut = replace(stored, document=replace(stored.document, n_tokens_full=300))
    longer = replace(pair, document=f"{pair.document} and more of it" * 2)
    few = [(longer, cut)]
    store.put(MODEL, METHOD, few)
    method = over_text(METHOD)
    first, again = (
        MeanCurves(Store(store.root)).of(MODEL, method, [longer], "bench")[1] for _ in range(2)
    )
    assert np.isnan(first.curve.mean).any() and same(first, again)
    assert first.curve.n_read is not None and again.center_of_mass is None


def added(store: Store, results: list[tuple[TextPair, Attribution]]) -> None:
    store.put(MODEL, METHOD, results[N:])


def failed(store: Store, results: list[tuple[TextPair, Attribution]]) -> None:
    store.put_failures(MODEL, METHOD, [(results[N][0], "too long")])


def replaced(store: Store, results: list[tuple[TextPair, Attribution]]) -> None:
    store.put(MODEL, METHOD, [(results[0][0], results[N - 1][1])])


def replaced_by_a_failure(store: Store, results: list[tuple[TextPair, Attribution]]) -> None:
    store.put_failures(MODEL, METHOD, [(results[0][0], "too long")])


def removed(store: Store, results: list[tuple[TextPair, Attribution]]) -> None:
    """Remove the last result, so that the next one may get its row id."""
    sql(store, "UPDATE result SET payload = x'00' WHERE id = (SELECT max(id) FROM result)")
    assert len(verify(store, MODEL, METHOD).damaged) == 1


def removed_and_another_added(store: Store, results: list[tuple[TextPair, Attribution]]) -> None:
    removed(store, results)
    store.put(MODEL, METHOD, [(results[N - 1][0], results[0][1])])


def file_removed_and_filled_again(
    store: Store, results: list[tuple[TextPair, Attribution]]
) -> None:
    (file,) = listing(store)
    drop_file(file)
    store.put(MODEL, METHOD, [(results[0][0], results[N - 1][1]), *results[1:N]])


CHANGES = [
    added,
    failed,
    replaced,
    replaced_by_a_failure,
    removed,
    removed_and_another_added,
    file_removed_and_filled_again,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_result_changes_the_mean(
    store: Store,
    pairs: Pairs,
    results: list[tuple[TextPair, Attribution]],
    averaged: list[int],
    change: Callable[[Store, list[tuple[TextPair, Attribution]]], None],
) -> None:
    before = mean(store, pairs)
    change(store, results)
    after = mean(store, pairs)
    assert len(averaged) == 2 and not same(before, after)
    again = mean(store, pairs)
    assert len(averaged) == 2 and same(after, again), "the new mean was not stored"
    sql(store, "DELETE FROM block WHERE name LIKE 'mean %'")
    assert same(mean(store, pairs), after) and len(averaged) == 3


@pytest.mark.parametrize("change", CHANGES)
def test_attempted_pairs_are_counted_once_until_a_result_changes(
    store: Store,
    pairs: Pairs,
    results: list[tuple[TextPair, Attribution]],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Store, list[tuple[TextPair, Attribution]]], None],
) -> None:
    own = MeanCurves(store)
    assert own.n_attempted(MODEL, METHOD, pairs) == N
    with monkeypatch.context() as patch:
        patch.setattr(Store, "missing", lambda *_: pytest.fail("the results were counted again"))
        assert own.n_attempted(MODEL, METHOD, pairs) == N
    change(store, results)
    attempted = len(pairs) - len(Store(store.root).missing(MODEL, METHOD, pairs))
    assert own.n_attempted(MODEL, METHOD, pairs) == attempted


def test_processes_see_each_others_new_results(
    store: Store, pairs: Pairs, averaged: list[int], forked: Forked
) -> None:
    code = """
import sys
from pathlib import Path
from bench.curves import made_up
from poslens.attribution.pairs import Pairs
from poslens.compute import mean_curves
from tests.poslens.test_mean_curves import METHOD, MODEL, N, Store, mean
mean_curves.MANY = 1
store, results = Store(Path(sys.argv[1])), list(made_up(N + 1))
store.put(MODEL, METHOD, results[N:])
print(mean(store, Pairs(pair for pair, _ in results)).curve.mean.tobytes().hex())
"""
    own = MeanCurves(store)
    assert own.of(MODEL, METHOD, pairs, "bench")[1].curve.n == N
    status, printed, errors = forked.run(str(store.root), code=code)
    assert status == 0, errors
    now = own.of(MODEL, METHOD, pairs, "bench")[1]
    assert now.curve.n == N + 1 and averaged == [N], "the other process's mean was not read"
    assert now.curve.mean.tobytes().hex() == printed.strip()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE block SET data = x'00' WHERE name LIKE 'mean %'",
        "UPDATE block SET data = 'text' WHERE name LIKE 'mean %'",
        "UPDATE block SET checksum = checksum + 1 WHERE name LIKE 'mean %'",
        "UPDATE block SET data = substr(data, 1, length(data) - 9) WHERE name LIKE 'mean %'",
        "UPDATE block SET n = 2 WHERE name LIKE 'mean %'",
        "DELETE FROM block WHERE name LIKE 'mean %'",
    ],
)
def test_a_damaged_mean_is_computed_again(
    store: Store, pairs: Pairs, averaged: list[int], damage: str
) -> None:
    first = mean(store, pairs)
    sql(store, damage)
    assert same(mean(store, pairs), first) and averaged == [N, N]
    assert same(mean(store, pairs), first) and averaged == [N, N]
    assert verify(store, MODEL, METHOD).blocks == 0, "the damaged block is still there"


@pytest.mark.parametrize(
    "forged",
    [
        {"mean": [float("nan")] * 100},
        {"mean": None},
        {"n": -1},
        {"n_documents": None},
        {"center_of_mass": {"value": None}},
        {"curve": None},
    ],
)
def test_a_forged_mean_is_ignored(
    store: Store, pairs: Pairs, averaged: list[int], forged: dict[str, Any]
) -> None:
    first = mean(store, pairs)
    forge(store, forged)
    assert same(mean(store, pairs), first) and averaged == [N, N]


def test_other_pairs_texts_methods_and_versions_have_separate_means(
    store: Store, pairs: Pairs, averaged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mean(store, pairs)
    other = replace(pairs[0], document=f"{pairs[0].document} again")
    mean(store, Pairs(pairs[:30]))
    assert mean(store, Pairs((other, *pairs[1:]))).curve.n == N - 1
    method = Method(METHOD.name, METHOD.params, curve_params("max", "bin_mean"))
    MeanCurves(store).of(MODEL, method, pairs, "bench")
    assert averaged == [N, 30, N - 1, N]
    monkeypatch.setattr(mean_curves, "MEAN_VERSION", mean_curves.MEAN_VERSION + 1)
    mean(store, pairs)
    assert averaged == [N, 30, N - 1, N, N]


def test_a_file_holds_a_limited_number_of_means(
    store: Store, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "MAX_MEANS", 3)
    for n in range(20, 26):
        mean(store, Pairs(pairs[:n]))
    assert sql(store, "SELECT count(*) FROM block WHERE name LIKE 'mean %'") == [(3,)]
    curves = store.curves(MODEL, METHOD, pairs)
    assert len(curves.pair_ids) == N, "blocks of results were dropped"
    compact(store, MODEL, METHOD)
    assert sql(store, "SELECT count(*) FROM block WHERE name LIKE 'mean %'") == [(0,)]


def test_no_mean_is_stored_for_few_pairs_or_in_a_read_only_folder(
    store: Store, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mean_curves, "MANY", N + 2)
    mean(store, pairs)
    assert sql(store, "SELECT count(*) FROM block WHERE name LIKE 'mean %'") == [(0,)]
    monkeypatch.setattr(mean_curves, "MANY", 1)
    monkeypatch.setattr(blocks, "append", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    assert mean(store, pairs).curve.n == N


# -- the digest of the pairs -----------------------------------------------------------------------


def registered(file: Path, documents: Sequence[str]) -> DataSet:
    rows = [
        {"pair_id": f"p{k}", "query": "when does fog lift", "document": document}
        for k, document in enumerate(documents)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (name,) = datasets.register(file.stem, file)
    datasets.reload_if_changed(name)
    return datasets.read(name)


def test_pairs_of_files_are_identified_by_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: Forked
) -> None:
    data = registered(tmp_path / "fogs.jsonl", ["Fog lifts at noon.", "Fog lifts at ten."])
    monkeypatch.setattr(
        mean_curves, "_of_texts", lambda columns: pytest.fail("the texts were hashed")
    )
    whole, part = pairs_digest(data.pairs), pairs_digest(Pairs(data.pairs[:1]))
    assert whole != part
    code = """
import sys
from poslens.attribution import datasets
from poslens.compute import mean_curves
mean_curves.MANY = 1
datasets.register("fogs", sys.argv[1])
print(mean_curves.pairs_digest(datasets.read("fogs").pairs))
"""
    status, printed, errors = forked.run(str(tmp_path / "fogs.jsonl"), code=code)
    assert status == 0, errors
    assert printed.strip() == whole
    changed = registered(tmp_path / "fogs.jsonl", ["Fog lifts at noon.", "Fog lifts at two."])
    assert pairs_digest(changed.pairs) != whole


def test_pairs_that_differ_from_their_files_are_identified_by_their_texts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mists.jsonl"
    data = registered(file, ["Mist lifts at noon.", "Mist lifts at ten."])
    other = Pairs(replace(pair, query="a null control's") for pair in data.pairs)
    assert mean_curves._of_files(other) == ""
    assert pairs_digest(other) != pairs_digest(data.pairs)
    # Changed after the pairs were read, which only the corpus's reader notices.
    file.write_text(file.read_text().replace("noon", "four"))
    datasets.corpus_of("mists")
    assert mean_curves._of_files(data.pairs) == ""
    file.unlink()
    assert len(pairs_digest(Pairs(data.pairs))) == 32


# -- minus null controls -----------------------------------------------------------------------


def controlled(
    store: Store, pairs: Pairs, control: Control = "filler", among: Pairs | None = None
) -> tuple[ControlledCurve, int]:
    """The mean minus controls as shown by a new process, and how often it was computed."""
    computed = []

    def compute() -> ControlledCurve:
        computed.append(control)
        stored = store.curves(MODEL, METHOD, pairs)
        groups = pairs.documents_of(list(stored.pair_ids))
        return minus_null(control, stored.curves, stored.curves[::-1], groups)

    means = MeanCurves(Store(store.root))
    found = means.controlled(MODEL, METHOD, control, pairs, among or pairs, compute)
    return found, len(computed)


def listed(curve: ControlledCurve) -> str:
    return json.dumps(asdict(curve), default=lambda value: np.asarray(value).tolist())


def test_a_new_process_reads_the_mean_minus_its_controls(store: Store, pairs: Pairs) -> None:
    first, computed = controlled(store, pairs)
    again, computed_again = controlled(store, Pairs(pairs))
    assert (computed, computed_again) == (1, 0) and listed(again) == listed(first)
    assert again.ci_low is not None and again.distance is not None
    assert again.comparison is not None and again.comparison.narrow is not None
    assert again.sentence == first.sentence and again.verdict == first.verdict
    assert averaged_is_untouched(store, pairs)


def averaged_is_untouched(store: Store, pairs: Pairs) -> bool:
    """Whether the plain mean of the same pairs has a separate block."""
    return same(mean(store, pairs), mean(store, pairs)) and controlled(store, pairs)[1] == 0


def test_a_mean_of_few_documents_minus_controls_is_read_back_without_intervals(
    store: Store, pairs: Pairs
) -> None:
    few = pairs.select(np.arange(4))
    first, _ = controlled(store, few)
    again, computed = controlled(store, few)
    assert computed == 0 and listed(again) == listed(first) and again.ci_low is None


def test_other_controls_pairs_and_results_have_separate_differences(
    store: Store, pairs: Pairs, results: list[tuple[TextPair, Attribution]]
) -> None:
    controlled(store, pairs)
    fewer = pairs.select(np.arange(N - 1))
    assert controlled(store, pairs, "shuffled")[1] == 1
    assert controlled(store, fewer)[1] == 1
    assert controlled(store, pairs, among=fewer)[1] == 1
    assert [controlled(store, pairs)[1], controlled(store, fewer)[1]] == [0, 0]
    store.put(MODEL, METHOD, results[N:])
    assert [controlled(store, pairs)[1], controlled(store, pairs)[1]] == [1, 0]


def test_a_changed_control_of_another_method_changes_the_difference(
    store: Store, pairs: Pairs, results: list[tuple[TextPair, Attribution]]
) -> None:
    """Controls by the query-free profile are results of another method in another file."""
    controlled(store, pairs, "profile")
    assert controlled(store, pairs, "profile")[1] == 0
    store.put(MODEL, null_method("profile", METHOD), results[:1])
    assert controlled(store, pairs, "profile")[1] == 1


@pytest.mark.parametrize(
    "forged",
    [
        {"mean": [float("nan")] * 100},
        {"mean": None},
        {"n": 0},
        {"n_documents": None},
        {"distance": {}},
        {"distance": {"value": float("nan")}},
        {"comparison": "no object"},
        {"comparison": {"difference": {"value": 1}}},
    ],
)
def test_a_forged_difference_is_computed_again(
    store: Store, pairs: Pairs, forged: dict[str, Any]
) -> None:
    first, _ = controlled(store, pairs)
    forge(store, forged)
    again, computed = controlled(store, pairs)
    assert computed == 1 and listed(again) == listed(first)
    sql(store, "UPDATE block SET data = 'text' WHERE name LIKE 'mean %'")
    assert controlled(store, pairs)[1] == 1 and controlled(store, pairs)[1] == 0


def test_the_service_stores_the_mean_minus_controls(
    store: Store, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages use the stored means."""
    asked: list[Control] = []
    monkeypatch.setattr(
        MeanCurves, "controlled", lambda self, model, method, kind, *_: asked.append(kind)
    )
    compute = Compute(store.root.parent)
    monkeypatch.setattr(compute, "identify", lambda spec: SimpleNamespace(key=MODEL))
    null_controls.controlled(compute, resolve("MiniLM"), METHOD, "filler", pairs, pairs)
    assert asked == ["filler"]
