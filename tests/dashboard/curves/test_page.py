"""The Curves page without a browser: models that read different parts of their texts."""

from __future__ import annotations

import io
import json
import pickle
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.attribution.curves import published
from poslens.attribution.curves.positions import BANDS
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers import resolve
from poslens.compute.compute import IDENTIFIED_S, service
from poslens.compute.selection import Selection
from poslens.dashboard.curves.results import CurvesView
from poslens.dashboard.widgets import panels
from tests.support import tiny_models
from tests.support.pages import open_page

WHOLE, READ = "Position in the text", "Relative position in the tokens read"


@pytest.fixture
def long_and_short(tmp_path: Path, one_thread: None) -> str:
    """Twenty-four documents, half of which the tiny model truncates, with curves of both models."""
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


def test_models_that_read_different_parts_are_drawn_over_the_whole_text_by_default(
    long_and_short: str,
) -> None:
    app = opened(models=["cutter", "BM25"])
    drawn = figure(app)
    assert WHOLE in drawn["layout"]["xaxis"]["title"]["text"]
    assert "axis=text" in drawn["layout"]["meta"]["provenance"][0]["method"]
    assert "axis=text" in captions(
        app
    ) and "cutter truncates the document in 12 of 24 pairs" in captions(app)
    assert [t["name"] for t in drawn["data"] if t.get("yaxis") == "y2"] == ["read"]
    # The page shows none of its code.
    assert not any("positions are counted" in one.value for one in app.markdown)
    # Center of mass and index don't change: they refer to what each model read.
    table = app.dataframe[0].value
    assert table["model"].tolist() == ["cutter", "BM25"]
    index = table["primacy-recency index"][0]
    assert "[" in index
    sentences = [one.value.replace("\\", "") for one in app.markdown]
    assert any(one.startswith(f"cutter: the primacy-recency index is {index}") for one in sentences)
    app.button_group(key="axis").set_value("tokens read").run()
    drawn = figure(app)
    assert READ in drawn["layout"]["xaxis"]["title"]["text"] and "yaxis2" not in drawn["layout"]
    assert "axis=text" not in captions(app) and "a different position in the text" in captions(app)


def test_exported_indices_have_the_provenance_of_the_tokens_read(long_and_short: str) -> None:
    app = opened(models=["cutter", "BM25"], axis="whole text", published=FIGURE_5[:1])
    methods = {}
    for name in ("Summary", "Paired differences", "Numbers"):
        app.selectbox(key="curves.what").select(name).run()
        app.button_group(key=f"curves.format.{name}").set_value("json").run()
        app.button(key="curves.prepare").click().run()
        exported = json.loads(app.session_state[panels._PREPARED].data)
        methods[name] = ["axis=text" in each["method"] for each in exported["provenance"]]
    assert methods == {
        "Summary": [False, False],
        "Paired differences": [False, False],
        "Numbers": [True, True],
    }


def test_one_model_and_the_posir_protocol_are_drawn_over_the_read_text(long_and_short: str) -> None:
    assert READ in figure(opened(models=["cutter"]))["layout"]["xaxis"]["title"]["text"]
    whole = figure(opened(models=["cutter"], axis="whole text"))
    assert WHOLE in whole["layout"]["xaxis"]["title"]["text"]
    shared = figure(opened(models=["cutter", "BM25"], axis="tokens read"))
    assert READ in shared["layout"]["xaxis"]["title"]["text"]


def test_documents_without_queries_link_to_available_analyses(tmp_path: Path) -> None:
    rows = [{"_id": f"d{n}", "text": f"Fog {n} lifts at noon. Stone stays."} for n in range(3)]
    (tmp_path / "alone.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    datasets.register("alone", tmp_path / "alone.jsonl")
    app = open_page("curves", dataset="alone", models=["MiniLM"]).run()
    assert not app.exception and not app.error
    (said,) = [one.value.replace("\\", "") for one in app.info]
    assert "have no queries" in said and "Query-free profile" in said and "Audit" in said
    assert not [one for one in app.button if one.key == "start"]
    links = [one.proto for one in app.get("page_link")]
    assert [one.label.replace("\\", "") for one in links] == ["Query-free profile", "Audit"]
    free = open_page("curves", dataset="alone", models=["MiniLM"], method="profile").run()
    assert not free.exception and [one for one in free.button if one.key == "start"]


FIGURE_5 = ["Qwen3-Embedding-8B", "NV-Embed-v2"]


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, curves=np.random.default_rng(0).random((4, 100)))
    return out.getvalue()


def upload(app: AppTest, name: str, data: bytes) -> AppTest:
    file = (name, data, "application/octet-stream")
    app.file_uploader(key="published.curves.upload").set_value([file]).run()
    assert not app.exception
    return app


def test_published_curves_are_added_to_the_chart(long_and_short: str) -> None:
    app = opened(models=["BM25"], published=FIGURE_5)
    drawn = figure(app)
    lines = [trace["name"] for trace in drawn["data"] if trace.get("showlegend", True)]
    assert lines == ["BM25", *(f"{name}, published" for name in FIGURE_5)]
    sources = [entry["model_source"] for entry in drawn["layout"]["meta"]["provenance"][1:]]
    assert sources == ["published", "published"]
    table = app.dataframe[0].value
    assert table["model"].tolist() == lines
    assert table["center of mass"].tolist()[1:] == ["0.424", "0.639"]
    # PosIR's code saves one curve per query with its document.
    assert table["pairs"].tolist()[1:] == [3131, 3131]
    assert pd.isna(table["documents"][1:]).all()
    assert "3,131 pairs; PosIR, figure 5" in captions(app)
    # Published bands are standard deviations, so they appear only with that band.
    assert not [trace for trace in drawn["data"] if trace["name"] == BANDS[1]]
    deviations = figure(opened(models=["BM25"], published=FIGURE_5, band=BANDS[1]))
    assert len([trace for trace in deviations["data"] if trace["name"] == BANDS[1]]) == 3


def test_the_provenance_of_the_chart_names_its_bands(long_and_short: str) -> None:
    def entries(band: str) -> list[dict[str, str]]:
        drawn = figure(opened(models=["BM25"], published=FIGURE_5[:1], band=band))
        return drawn["layout"]["meta"]["provenance"]

    interval, published = entries(BANDS[0])
    assert interval["interval"] == "95%, bootstrap over 24 documents"
    assert "band" not in interval and "band" not in published
    deviations, published = entries(BANDS[1])
    assert deviations["band"] == "standard deviation over pairs" and "interval" not in deviations
    assert published["band"] == "standard deviation over pairs"
    quartiles, published = entries(BANDS[2])
    assert quartiles["band"] == "quartiles over pairs" and "interval" not in quartiles
    assert "band" not in published


def test_a_page_of_models_that_do_not_exist_has_nothing_to_compute(long_and_short: str) -> None:
    app = open_page("curves", dataset=long_and_short, models=["nope"]).run()
    assert any("There is no model" in one.value for one in app.error)
    assert not app.info and not any("Compute" in one.label for one in app.button)


def test_published_curves_are_drawn_without_computed_ones(long_and_short: str) -> None:
    app = open_page("curves", dataset="sample", models=["BM25"], published=FIGURE_5[:1]).run()
    assert not app.exception and not app.error
    assert any("Press Compute" in one.value for one in app.info)
    # Without a band, the caption describes none.
    only = "Published curves have no band except the standard deviation."
    assert only in captions(app) and "the band is" not in captions(app)
    app.button_group(key="band").set_value(BANDS[1]).run()
    assert "the band is one standard deviation" in captions(app) and only not in captions(app)
    assert app.dataframe[0].value["model"].tolist() == [f"{FIGURE_5[0]}, published"]


def test_published_curves_are_read_from_folders_and_uploads(
    long_and_short: str, tmp_path: Path
) -> None:
    (tmp_path / "posir_saliency_NV.npz").write_bytes(npz())
    published.register(tmp_path)
    app = opened(models=["BM25"], published=["posir_saliency_NV.npz"])
    assert app.dataframe[0].value["model"].tolist() == ["BM25", "NV, published"]
    app = upload(opened(models=["BM25"]), "good.npz", npz())
    assert app.dataframe[0].value["model"].tolist() == ["BM25", "good, published"]
    app = upload(app, "<b>bad.pkl", pickle.dumps([print, "run"]))
    assert "contains no curves" in app.error[0].value and "<b>" not in app.error[0].value


def test_uploaded_curves_stay_for_the_session(long_and_short: str) -> None:
    def lines(page: AppTest) -> list[str]:
        return [line for line in page.dataframe[0].value["model"] if line != "BM25"]

    def other_page_and_back(page: AppTest) -> AppTest:
        for name in ("storage", "curves"):
            page.switch_page(f"{name}/page.py").run()
            assert not page.exception and not page.error
        return page

    app = upload(opened(models=["BM25"]), "first.npz", npz())
    assert not [one for one in app.button if "Remove" in one.label]
    assert lines(other_page_and_back(app)) == ["first, published"]
    app = upload(app, "second.npz", npz())
    assert lines(app) == ["first, published", "second, published"]
    app.file_uploader(key="published.curves.upload").set_value([]).run()
    assert lines(app) == ["first, published"]
    app.button(key="published.curves.remove.first.npz").click().run()
    assert lines(app) == []
    pair = [(name, npz(), "application/octet-stream") for name in ("same.npz", "same.npz")]
    app.file_uploader(key="published.curves.upload").set_value(pair).run()
    assert lines(app) == ["same, published"] * 2


def test_compare_shows_published_curves_with_the_data_sets_means(long_and_short: str) -> None:
    asked = {"a": "cutter", "b": "BM25", "dataset": "cut", "method": "occlusion"}
    app = open_page("compare", published=FIGURE_5[:1], **asked).run()
    assert not app.exception
    drawn = [json.loads(one.proto.spec) for one in app.get("plotly_chart")]
    names = [trace.get("name") for trace in drawn[0]["data"]]
    assert f"{FIGURE_5[0]}, published" in names
    assert "curves as published" in captions(app)


def test_models_are_compared_on_the_same_pairs(long_and_short: str) -> None:
    app = opened(models=["cutter", "BM25"])
    sentences = [one.value.replace("\\", "") for one in app.markdown]
    start = "BM25 compared with cutter over 24 pairs: primacy-recency index "
    assert any(sentence.startswith(start) for sentence in sentences)
    (table,) = [one.value for one in app.dataframe if "difference" in one.value.columns]
    assert table["n"].tolist() == [24]
    assert not any("compared with" in one.value for one in opened(models=["cutter"]).markdown)


def test_the_mean_counts_the_pairs_that_have_results(long_and_short: str) -> None:
    from poslens.dashboard.widgets.choices import spec

    method, pairs = make_method("saliency"), datasets.read("cut").pairs
    service().attribution_job(spec("cutter", "cut"), method, pairs[:12], "cut: ").start().wait()
    app = open_page("curves", method="saliency", dataset="cut", models=["cutter"]).run()
    assert any("Selected: all 24 pairs." in one.value for one in app.markdown)
    assert "Mean over 12 of 24 pairs, from 12 documents." in captions(app)


def test_names_of_runs_have_the_number_of_selected_pairs(long_and_short: str) -> None:
    data, few = datasets.read("cut"), np.arange(24) < 5
    selections = (
        Selection(data, data.pairs, ""),
        Selection(data, data.pairs.select(few), "search 'my own words'"),
    )
    views = (
        CurvesView(data, ("BM25",), make_method("occlusion"), selection, False)
        for selection in selections
    )
    named = [job.doing for view in views for job in view.jobs()]
    assert named == ["Occlusion", "Occlusion, 5 pairs"]


def test_too_few_curves_for_a_mean_are_not_called_none(long_and_short: str) -> None:
    from poslens.dashboard.widgets.choices import spec

    method, pairs = make_method("input_x_gradient"), datasets.read("cut").pairs
    service().attribution_job(spec("cutter", "cut"), method, pairs[:3], "cut: ").start().wait()
    app = open_page("curves", method="input_x_gradient", dataset="cut", models=["cutter"]).run()
    assert "cutter has curves for 3 of 24 pairs." in captions(app)
    assert [one.label for one in app.button if one.key == "start"] == ["Compute remaining"]
    assert not app.info


def test_an_unreadable_model_does_not_affect_the_others(
    long_and_short: str, tmp_path: Path
) -> None:
    for file in (tmp_path / "model").rglob("*.safetensors"):
        file.unlink()
    time.sleep(IDENTIFIED_S)  # so that files are checked again
    app = open_page("curves", method="occlusion", dataset="cut", models=["cutter", "BM25"])
    app.run()
    assert not app.exception
    assert any("cutter" in error.value for error in app.error)
    assert app.get("plotly_chart"), "BM25's curve is drawn"


@pytest.mark.usefixtures("own_service")
def test_the_curves_with_and_without_a_control_have_headings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    app = open_page("curves", models=["MiniLM"], control="unrelated query").run()
    assert not app.exception and not app.error
    headings = [one.value.replace("\\", "") for one in app.markdown]
    assert "**Curves minus their control (unrelated query)**" in headings
    assert "**Curves before subtraction**" in headings
