"""The study of preferences of methods: computed once, resumed, shown, and refused for other
models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation import preferences as science
from poslens.attribution.evaluation.preferences import (
    CONDITIONS,
    METHOD,
    STRENGTHS,
    PlantedResponse,
    Preference,
)
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.kinds.study_items import preferences
from poslens.cache.shipped.preferences import certified, short_verdict, verdict
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.studies.preferences import PREFERENCES, PreferenceSummary
from tests.support.pages import open_page


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


def run(*arguments: str) -> Any:
    options = ("--documents", "2", "--method", "saliency")
    return CliRunner().invoke(app, ["preferences", *options, *arguments], catch_exceptions=False)


def test_a_method_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = json.loads(run("--format", "json").stdout)
    (row,) = answer["rows"]
    assert row["method"] == "saliency" and row["documents"] == 2
    assert row["order_blind_low"] is None, "two documents have no interval"
    assert abs(row["order_blind"]) < 0.2 < row["slope"]
    assert row["rank_correlation"] == 1
    model = service().identify(resolve("MiniLM"))
    settings = PREFERENCES.parameters.settings({"methods": ["saliency"], "documents": 2})
    corpus = PREFERENCES.corpus(datasets.read("sample"), settings)
    (subject,) = PREFERENCES.subjects(service(), model.spec, corpus, settings)
    assert PREFERENCES.job(service(), subject).n_done() == len(CONDITIONS)
    # The loaded model was not changed.
    table = science.position_table(service().retriever(model))
    assert float(table.weight.abs().sum()) > 0

    def never(*arguments: object) -> None:
        raise AssertionError("computed twice")

    monkeypatch.setattr("poslens.studies.preferences.thirds", never)
    again = json.loads(run("--format", "json", "--table", "strengths").stdout)
    assert [row["strength"] for row in again["rows"]] == list(STRENGTHS)
    indices = [row["index"] for row in again["rows"]]
    assert indices == sorted(indices)
    drawn = json.loads(run("--table", "strengths", "--figure", str(tmp_path / "drawn.json")).stdout)
    figure = json.loads((tmp_path / "drawn.json").read_text())
    assert figure["data"][0]["x"] == list(STRENGTHS)
    assert figure["data"][0]["y"] == [row["index"] for row in drawn["rows"]] == indices
    assert figure["layout"]["yaxis"]["title"]["text"] == "Primacy-recency index"
    # Other texts give other measurements.
    other = PREFERENCES.parameters.settings({"methods": ["saliency"], "documents": 3})
    corpus = PREFERENCES.corpus(datasets.read("sample"), other)
    (subject,) = PREFERENCES.subjects(service(), model.spec, corpus, other)
    assert PREFERENCES.job(service(), subject).n_done() == 0
    assert preferences(service().root).kind == METHOD.name

    page = open_page("methods", tab="Preferences", methods=["saliency"], documents="2").run()
    assert not page.exception and not page.error
    assert any("detects" in one.value for one in page.markdown)
    assert any("slope" in one.value for one in page.dataframe)


def test_planted_biases_can_be_left_out(tmp_path: Path) -> None:
    (row,) = json.loads(run("--order-blind-only", "--format", "json").stdout)["rows"]
    assert abs(row["order_blind"]) < 0.2
    assert row["slope"] is None and row["primacy_from"] is None and row["query_free"] is None
    file = tmp_path / "strengths.json"
    undrawn = run("--order-blind-only", "--table", "strengths", "--figure", str(file))
    assert undrawn.exit_code == 2 and not file.exists(), "no figure of another table"
    assert "No method has been measured on the models with a planted bias" in undrawn.stderr
    # A page also shows it before the planted biases are measured.
    page = open_page("methods", tab="Preferences", methods=["saliency"], documents="2").run()
    assert not page.exception and not page.error
    texts = [one.value.replace("\\", "") for one in page.markdown]  # without escapes
    assert any("on an encoder that ignores word order" in text for text in texts)


def test_other_models_are_refused() -> None:
    result = run("--model", "BM25")
    assert result.exit_code == 2 and "has no variants with a known position bias" in result.stderr


def test_curves_state_the_certified_preference() -> None:
    method, spec = make_method("saliency"), resolve("MiniLM")

    def stated(method: Method) -> str:
        return verdict(method, [spec])

    found = certified()[repr(method)]
    ignores = "on an encoder that ignores word order"
    assert stated(method).startswith(f"Check of the method itself: {ignores}, ")
    assert found.order_blind.text("+.2f") in stated(method)
    assert short_verdict(method, spec) == (
        f"{found.order_blind.text('+.2f')} (the method's primacy-recency index "
        f"{ignores}, {found.n_documents} documents of the sample)"
    )
    posir = make_method("saliency", {"resampling": "point"})
    assert repr(posir) in certified(), "curve settings are measured too"
    other = make_method("occlusion", {"level": "token"})
    assert "not measured with these parameters" in stated(other)
    matrix = make_method("decomposition", {"matrix": "yes"})
    assert stated(matrix) == stated(make_method("decomposition")) != ""
    terms = make_method("terms")
    assert stated(terms) == short_verdict(terms, spec) == ""


def test_a_certificate_with_padding_is_not_stated_for_models_whose_words_are_deleted() -> None:
    method = make_method("occlusion")
    endpoint = RetrieverSpec("ours", "ours", "endpoint", "endpoint:http://localhost:1#m")
    certified_with_padding = verdict(method, [resolve("MiniLM"), resolve("BM25")])
    assert certified_with_padding.count("Check of the method itself") == 1
    unknown = "measured only where padding replaces words; for ours, words are deleted"
    assert short_verdict(method, endpoint) == unknown
    assert verdict(method, [resolve("MiniLM"), endpoint]) == (
        f"{certified_with_padding} What this method itself prefers is unknown: {unknown}."
    )


def test_indices_by_strength_are_drawn_with_their_intervals() -> None:
    indices = tuple(Estimate(x / 2, x / 2 - 0.1, x / 2 + 0.2) for x in STRENGTHS)
    response = PlantedResponse(indices, Estimate(0.5), None, None, None, None)
    found = Preference(make_method("saliency"), 12, Estimate(0.0), response)
    summary = PreferenceSummary(found, service().identify(resolve("MiniLM")), "sample")
    figure = PREFERENCES.draw([summary], Style(), "strengths")
    (trace,) = figure.data
    np.testing.assert_allclose(trace.y, [x / 2 for x in STRENGTHS])
    np.testing.assert_allclose(trace.error_y.array, 0.2)
    np.testing.assert_allclose(trace.error_y.arrayminus, 0.1)


def test_the_verdict_says_what_the_ratio_without_the_query_compares() -> None:
    slope, ratio = Estimate(0.5), Estimate(1.163, 1.06, 1.24)
    indices = tuple(Estimate(x / 2) for x in STRENGTHS)
    planted = PlantedResponse(indices, slope, None, 0.5, None, ratio)
    measured = Preference(make_method("saliency"), 12, Estimate(0.0), planted)
    summary = PreferenceSummary(measured, service().identify(resolve("MiniLM")), "sample")
    stated = PREFERENCES.verdict(summary)
    assert "The index grows by +0.500 per unit of strength" in stated
    assert stated.endswith(
        "With an unrelated query, the difference between the indices at strengths 1 and −1 is "
        "1.16 [1.06, 1.24] times as large."
    )


def test_an_empty_choice_of_all_is_called_all() -> None:
    page = open_page("methods", tab="Preferences", documents="2").run()
    (methods,) = [one for one in page.multiselect if one.label == "Methods"]
    assert methods.proto.placeholder == "all" and "repeatable" not in methods.help.lower()
    assert "Repeatable." in run("--help").stdout
