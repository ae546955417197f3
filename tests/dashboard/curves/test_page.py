"""The Curves page without a browser: models that read different parts of their texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers import resolve
from poslens.compute.compute import service
from tests.support import tiny_models
from tests.support.pages import open_page

WHOLE, READ = "Position in the whole text", "Relative position in what was read"


@pytest.fixture
def long_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> str:
    """Twenty-four documents, half of which the tiny model cuts, and both models' curves of them."""
    for module, name in ((datasets, "_folders"), (datasets, "_variants"), (resolve, "_registered")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    (tmp_path / "model").mkdir()
    folder = tiny_models.build("bert", tmp_path / "model", tokenizer_limit=80)
    resolve.register_folder("cutter", folder)
    rows = [
        {
            "query": "when does fog lift",
            "document": f"Fog {n} lifts at noon. " * (2 if n % 2 else 20),
            "evidence": "lifts at noon",
            "pair_id": f"p{n}",
        }
        for n in range(24)
    ]
    (tmp_path / "cut.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("cut", tmp_path / "cut.jsonl")
    from poslens.dashboard.widgets.choices import spec

    pairs = datasets.read("cut").pairs
    method = make_method("occlusion")
    for name in ("cutter", "BM25"):
        run = service().attribution_job(spec(name, "cut"), method, pairs, "cut: ").start()
        run.wait()
        assert not run.error
    return "cut"


def opened(**query: object) -> AppTest:
    app = open_page("curves", method="occlusion", dataset="cut", **query)
    app.run()
    assert not app.exception and not app.error
    return app


def figure(app: AppTest) -> dict:
    return json.loads(app.get("plotly_chart")[0].proto.spec)


def captions(app: AppTest) -> str:
    return " ".join(one.value for one in app.caption).replace("\\", "")


def test_unlike_models_stand_over_the_whole_text_until_the_reader_chooses(
    long_and_short: str,
) -> None:
    app = opened(models=["cutter", "BM25"])
    drawn = figure(app)
    assert WHOLE in drawn["layout"]["xaxis"]["title"]["text"]
    assert "axis=text" in drawn["layout"]["meta"]["provenance"][0]["method"]
    assert "axis=text" in captions(app) and "cutter cuts 12 of 24 pairs" in captions(app)
    assert [t["name"] for t in drawn["data"] if t.get("yaxis") == "y2"] == ["read"]
    # The page shows no string of its code.
    assert not any("positions are counted" in one.value for one in app.markdown)
    # Centre of mass and index stay: they are of what each model read.
    table = app.dataframe[0].value
    assert table["model"].tolist() == ["cutter", "BM25"]
    assert "[" in table["primacy-recency index"][0]
    app.button_group(key="axis").set_value("what the model read").run()
    drawn = figure(app)
    assert READ in drawn["layout"]["xaxis"]["title"]["text"] and "yaxis2" not in drawn["layout"]
    assert "axis=text" not in captions(app) and "not the same place" in captions(app)


def test_one_model_and_the_posir_protocol_stay_over_what_was_read(long_and_short: str) -> None:
    assert READ in figure(opened(models=["cutter"]))["layout"]["xaxis"]["title"]["text"]
    whole = figure(opened(models=["cutter"], axis="whole text"))
    assert WHOLE in whole["layout"]["xaxis"]["title"]["text"]
    shared = figure(opened(models=["cutter", "BM25"], axis="what the model read"))
    assert READ in shared["layout"]["xaxis"]["title"]["text"]


def test_documents_without_queries_lead_to_what_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_folders", "_variants"):
        monkeypatch.setattr(datasets, name, dict(getattr(datasets, name)))
    rows = [{"_id": f"d{n}", "text": f"Fog {n} lifts at noon. Stone stays."} for n in range(3)]
    (tmp_path / "alone.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("alone", tmp_path / "alone.jsonl")
    app = open_page("curves", dataset="alone", models=["MiniLM"]).run()
    assert not app.exception and not app.error
    (said,) = [one.value.replace("\\", "") for one in app.info]
    assert "without queries" in said and "Query-free profile" in said and "Audit" in said
    assert not [one for one in app.button if one.key == "start"]
    links = [one.proto for one in app.get("page_link")]
    assert [one.label.replace("\\", "") for one in links] == ["Query-free profile", "Audit"]
    free = open_page("curves", dataset="alone", models=["MiniLM"], method="profile").run()
    assert not free.exception and [one for one in free.button if one.key == "start"]
