"""Shipped results are complete, belong to the current models and methods, and equal those computed
here."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import SAMPLE
from poslens.attribution.evaluation.faithfulness import (
    POSITION_ORDERS,
    ErasureParameters,
    position_order,
)
from poslens.attribution.methods import attribute_batches, make_method
from poslens.attribution.retrievers.resolve import installed, resolve
from poslens.attribution.retrievers.specs import data_folder, presets
from poslens.attribution.types import N_BINS, TextPair
from poslens.cache.kinds.faithfulness import faithfulness_tests
from poslens.cache.kinds.interventions import intervene
from poslens.cache.shipped.manifest import FOLDER, NAME, shipped_files
from poslens.cache.shipped.preferences import certified
from poslens.cache.storage.maintenance import listing
from poslens.compute.compute import Compute
from poslens.studies.cause import service as interventions
from poslens.studies.curves import null_controls
from tools import shipped as tool

# Read before a fixture changes it: the user's folder of fetched models.
REAL_DATA_FOLDER = data_folder().absolute()

SEED = 20261122
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compute]:
    """A fresh cache with the shipped results as its fallback."""
    before = os.environ["POSLENS_SHIPPED"]
    os.environ["POSLENS_SHIPPED"] = "yes"
    yield Compute(tmp_path_factory.mktemp("home"))
    os.environ["POSLENS_SHIPPED"] = before


@pytest.fixture(scope="module")
def pairs() -> tuple[TextPair, ...]:
    return datasets.read(SAMPLE).pairs


def test_the_files_match_the_list_and_are_small() -> None:
    listed = shipped_files()
    assert {path.name for path in FOLDER.iterdir()} == {NAME, *(file.name for file in listed)}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= tool.MAX_BYTES
    assert all((FOLDER / file.name).stat().st_size == file.bytes for file in listed)


def test_shipped_results_of_fetched_models_are_of_the_presets_weights(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"ranking", "evidence_read", "relocation", "position_ranks", "saliency"}
    kinds |= {"why", "needle"}
    dense = {"segments", "reachability", "truncation"}  # these need one vector per text
    for name in tool.FETCHED:
        files = [file for file in shipped_files() if file.model == name]
        expected = kinds | dense if name == "multilingual-e5-small" else kinds
        assert {file.method.partition("(")[0] for file in files} == expected
        assert all(file.datasets == (SAMPLE,) for file in files)
        assert len({file.fingerprint for file in files}) == 1
    monkeypatch.setenv("POSLENS_HOME", str(REAL_DATA_FOLDER))
    if not all(installed(presets()[name]) for name in tool.FETCHED):
        pytest.skip(f"{', '.join(tool.FETCHED)} is not in the data folder")
    lacking = {
        what: f"{job.n_done()} of {job.total}"
        for what, job in tool.fetched_plan(compute)
        if what != "ranking" and job.n_done() != job.total
    }
    assert lacking == {}, "run python -m tools.shipped"
    setup = tool.ranking.RankingSetup(tool.ranking.collection_of(datasets.read(SAMPLE)))
    for name in tool.FETCHED:
        assert tool.ranking.ranked(compute, presets()[name], setup) is not None


def test_every_planned_result_ships_and_none_counts_as_stored(compute: Compute) -> None:
    """This also shows that nothing is stale: results of an older version count as missing here."""
    lacking = {
        f"{job.label}, {what}": f"{job.n_done()} of {job.total}"
        for what, job in tool.plan(compute)
        if what not in ("ranking", "map") and job.n_done() != job.total
    }
    assert lacking == {}, "run python -m tools.shipped"
    data = datasets.read(SAMPLE)
    setup = tool.ranking.RankingSetup(tool.ranking.collection_of(data))
    for spec in tool.specs(SAMPLE):
        assert tool.ranking.ranked(compute, spec, setup) is not None, spec.name
        for source in tool.sources(spec, data):
            found = tool.maps.stored_map(compute, spec, source, tool.LAYOUT)
            assert found.points is not None, (spec.name, source.scope)
    tests = faithfulness_tests(compute.root, ErasureParameters())
    tested = tool.few(
        data, tool.spread_evenly(data.pairs, tool.interventions.DEFAULT_PAIRS), tool.N_TESTED
    )
    model = compute.identify(resolve("MiniLM")).key
    for start in POSITION_ORDERS:
        assert tests.missing(model, position_order(start), tested) == []
    assert listing(compute.store) == []


def test_the_table_of_preferences_equals_the_shipped_results(compute: Compute) -> None:
    found = {repr(each.method): each for each in tool.preferences_of(compute)}
    shipped = certified()
    assert set(shipped) == set(found), "run python -m tools.shipped"
    for method, preference in shipped.items():
        here = found[method]
        assert preference.n_documents == here.n_documents
        assert preference.order_blind.value == pytest.approx(here.order_blind.value, abs=1e-4)
        assert preference.order_blind.interval == pytest.approx(here.order_blind.interval, abs=1e-4)
        assert (preference.planted is None) is (here.planted is None)
        if preference.planted is not None and here.planted is not None:
            assert preference.planted.slope.value == pytest.approx(
                here.planted.slope.value, abs=1e-4
            )
            assert preference.planted.primacy == here.planted.primacy


@pytest.mark.parametrize("name", tool.MODELS)
def test_a_few_results_computed_here_equal_the_shipped_ones(
    name: str, compute: Compute, pairs: tuple[TextPair, ...]
) -> None:
    lot = random.Random(f"{SEED} {name}")
    (spec,) = [one for one in tool.specs(SAMPLE) if one.name == name]
    model = compute.identify(spec)
    retriever = compute.retriever(model)
    short = [pair for pair in pairs if (pair.document_tokens or 0) <= 512]
    for method in tool.methods_of(spec):
        chosen = lot.sample(short, 1)
        if method == tool.methods_of(spec)[0]:
            chosen += null_controls.controls("unrelated", lot.sample(short, 1), pairs)
        for batch in attribute_batches(retriever, method, chosen):
            for outcome in batch:
                made, kept = outcome.attribution, compute.store.get(model.key, method, outcome.pair)
                assert made is not None and kept is not None
                assert kept.document == made.document and kept.query == made.query
                assert kept.score == pytest.approx(made.score, rel=TOLERANCE)
                for here, there in (
                    (made.document_scores, kept.document_scores),
                    (made.query_scores, kept.query_scores),
                ):
                    largest = max(float(np.abs(here).max()), 1e-9)
                    np.testing.assert_allclose(there, here, rtol=0, atol=TOLERANCE * largest)
    moved = tool.few(datasets.read(SAMPLE), tool.movable(pairs)[0], interventions.DEFAULT_PAIRS)
    pair = lot.choice([one for one in moved if one in short])
    for what in (tool.relocation_method(), tool.ablation_method("delete")):
        kept = interventions.stored(compute, spec, what, [pair]).results[pair.pair_id]
        made = intervene(retriever, what, pair)
        np.testing.assert_allclose(kept.curve(N_BINS), made.curve(N_BINS), rtol=0, atol=TOLERANCE)


def test_the_work_folder_can_be_anywhere(tmp_path: Path) -> None:
    """An empty one writes an empty list."""
    store = Compute(tmp_path).store
    assert tool.write_all(store, tmp_path / "out") == () == shipped_files(tmp_path / "out")


def test_the_first_pair_that_pages_show_is_shipped(compute: Compute) -> None:
    first = tool.first_shown(datasets.read(SAMPLE))
    model = compute.identify(resolve("MiniLM"))
    assert compute.store.get(model.key, make_method("saliency"), first) is not None
