"""Retrievers of every family on the pages, on the command line and in the cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from attribution.datasets import DataSet
from attribution.faithfulness import Parameters
from attribution.methods import METHODS, make_method
from attribution.retrievers import registry
from attribution.retrievers.lexical import with_corpus
from attribution.types import TextPair
from dashboard.__main__ import app
from dashboard.compute import Compute, service

ROOT = Path(__file__).parents[2]
PAIR = TextPair("p", "what turns the tide", "The tide turns twice a day. The Moon pulls the water.")


@pytest.fixture(autouse=True)
def own_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry, "_registered", {})
    service.cache_clear()
    yield
    service.cache_clear()


def explain_page(model: str, method: str) -> AppTest:
    page = AppTest.from_file(str(ROOT / "dashboard/views/explain.py"), default_timeout=120)
    page.query_params["text"] = "Own text"
    page.query_params["q"] = PAIR.query
    page.query_params["d"] = PAIR.document
    page.query_params["models"] = model
    page.query_params["method"] = method
    return page.run()


def test_bm25_on_the_explain_page() -> None:
    page = explain_page("BM25", "terms")
    assert not page.exception and not page.error
    assert float(page.metric[0].value) > 0
    captions = " ".join(c.value for c in page.caption)
    assert "statistics of the two texts" in captions
    assert "Not saliency: BM25: it is for" in captions.replace("\\", "")


def test_bm25_on_the_command_line() -> None:
    arguments = ["explain", "--model", "BM25", "--method", "terms"]
    found = CliRunner().invoke(
        app, [*arguments, "--query", PAIR.query, "--document", PAIR.document]
    )
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert sum(result["document_scores"]) == pytest.approx(result["score"], rel=1e-6)
    refused = CliRunner().invoke(
        app, ["explain", "--model", "BM25", "--query", "a", "--document", "b"]
    )
    assert refused.exit_code == 2 and "does not fit BM25" in refused.output


def test_bm25_over_a_data_set_with_its_own_statistics(sample: DataSet, tmp_path: Path) -> None:
    compute = Compute(tmp_path / "other")
    spec = with_corpus(registry.resolve("BM25"), sample.name)
    method, pairs = make_method("terms"), sample.pairs[:6]
    run = compute.start_run(spec, method, pairs, sample.name)
    run.wait()
    assert not run.error and run.progress.failed == 0
    curve = compute.curve(spec, method, pairs, sample.name)
    assert curve.summary.curve.n == 6
    assert "statistics of sample" in curve.provenance().caption()
    assert "prompts none" in curve.provenance().caption()
    tested = compute.test_pair(pairs[0], spec, method, Parameters())
    assert tested.gain is not None and tested.gain.deletion_area > 0
    # Other statistics are another model: nothing is taken from the wrong cache.
    plain = registry.resolve("BM25")
    assert compute.identify(plain).key != compute.identify(spec).key
    assert not compute.explain(pairs[0], plain, method).from_cache
    assert compute.explain(pairs[0], spec, method).from_cache


def test_every_method_says_which_families_it_is_for() -> None:
    known = {spec.family for spec in registry.presets().values()}
    assert known <= {family for entry in METHODS.values() for family in entry.families}
