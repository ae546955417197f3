"""`import poslens`: its calls compared with their services, and the display of results."""

from __future__ import annotations

import html
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer
from transformers.utils import logging as transformers_logging
from typer.testing import CliRunner

import poslens
from poslens import api as calls
from poslens import arguments, saved_models
from poslens.arguments import option_words
from poslens.attribution.curves.positions import document_curve
from poslens.attribution.methods import attribute_batches, make_method
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import data_folder
from poslens.attribution.types import TextPair
from poslens.studies import declared
from poslens.studies.curves.result import Curves
from poslens.studies.explain.command import app as explain_command
from poslens.studies.explain.service import reading
from tests.support import tiny_models
from tests.support.endpoint_server import hashed

QUERY = "when does the tide turn"
DOCUMENT = "The tide turns twice a day. The Moon pulls the water. <script>alert(1)</script>"
ROWS = [
    {
        "query": f"what is {word}",
        "document": f"Nobody saw it. The {word} is grey at dawn. It rained all night.",
        "evidence": f"The {word} is grey at dawn.",
        "pair_id": word,
    }
    for word in ("fog", "ice", "tide", "rust", "moss", "clay", "salt", "dew", "flint", "chalk")
]


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("api") / "grey.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    yield str(file)


def test_the_language_of_typed_texts_decides_on_their_sentences() -> None:
    text = "Am 3. Mai steigt das Wasser. Danach sinkt es."
    german, english = (
        poslens.explain(
            "MiniLM", QUERY, text, method="occlusion", level="sentence", language=code
        ).results[0]
        for code in ("deu", "eng")
    )
    # English rules end a sentence after "3.", whose tokens would then have another value.
    scores = [result.attribution.document_scores for result in (german, english)]
    assert not np.allclose(*scores)


@pytest.fixture(scope="module")
def tide() -> poslens.calls.Explanation:
    return poslens.explain("MiniLM", QUERY, DOCUMENT, evidence="twice a day")


@pytest.mark.parametrize(("resampling", "ends"), [("bin_mean", (0.5, 99.5)), ("point", (0, 100))])
def test_the_curve_of_an_explanation_is_drawn_at_its_points(
    resampling: str, ends: tuple[float, float]
) -> None:
    found = poslens.explain("MiniLM", QUERY, DOCUMENT, resampling=resampling)
    (line,) = found.figure().data
    assert (line.x[0], line.x[-1]) == pytest.approx(ends)


def test_an_explanation_equals_the_methods_result(tide: poslens.calls.Explanation) -> None:
    pair = TextPair("typed", QUERY, DOCUMENT)
    ((outcome,),) = attribute_batches(load(resolve("MiniLM")), make_method("saliency"), [pair])
    wanted = outcome.attribution
    assert wanted is not None
    assert tide.score == pytest.approx(wanted.score, abs=1e-6)
    np.testing.assert_allclose(tide.curve, document_curve(wanted), atol=1e-5)
    frame = tide.to_frame()
    assert len(frame) == len(wanted.query.tokens) + len(wanted.document.tokens)
    marked = frame[(frame["side"] == "document") & frame["in_evidence"].fillna(False)]
    assert " ".join(marked["token"]) == "twice a day"
    assert repr(tide) == f"<Explanation by saliency: MiniLM {wanted.score:.4f}>"


def test_a_notebook_shows_it_in_a_sandboxed_frame(
    tide: poslens.calls.Explanation,
) -> None:
    shown = tide._repr_html_()
    assert shown.startswith("<iframe ") and 'sandbox="allow-scripts"' in shown
    inside = html.unescape(shown.partition('srcdoc="')[2].partition('" sandbox')[0])
    assert "default-src 'none'" in inside and "<script>alert(1)" not in inside
    assert "<script" not in shown.replace(html.escape(inside), "")


def test_the_widget_draws_the_same_as_the_file(
    tide: poslens.calls.Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    widget = tide.widget()
    page = tide.heatmap("html").decode()
    drawn = json.loads(page.partition('id="heatmap-data">')[2].partition("</script>")[0])
    assert json.loads(json.dumps(widget.data)) == drawn["data"]
    assert widget.pinned == []
    monkeypatch.setitem(sys.modules, "poslens.widget", None)
    with pytest.raises(poslens.UserError, match="pip install anywidget"):
        tide.widget()


@pytest.mark.parametrize("suffix", ["html", "csv", "parquet", "json", "svg"])
def test_it_is_saved_with_its_provenance(
    tide: poslens.calls.Explanation, tmp_path: Path, suffix: str
) -> None:
    saved = tide.save(tmp_path / f"tide.{suffix}")
    assert saved.name == f"tide.{suffix}"
    if suffix == "csv":
        assert len(pd.read_csv(saved)) == len(tide.to_frame())
        saved = tmp_path / "tide.provenance.json"
        assert json.loads(saved.read_bytes()) == [one.entry() for one in tide.provenance]
    assert b"all-MiniLM-L6-v2" in saved.read_bytes()
    assert len(list(tmp_path.iterdir())) == (2 if suffix == "csv" else 1)


def test_rejected_rows_are_reported_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("query,document\nwhat is ice,Ice is old.\n,No query.\n")
    poslens.rank("BM25", tmp_path / "rows.csv")
    assert "1 row was rejected:\n  rows.csv row 3: " in capsys.readouterr().err
    poslens.curve("BM25", tmp_path / "rows.csv", method="terms")
    assert "1 row was rejected:" in capsys.readouterr().err


def test_several_models_are_explained_at_once() -> None:
    found = poslens.explain(["MiniLM", "BM25"], QUERY, DOCUMENT, method="occlusion")
    assert list(found.scores) == ["MiniLM", "BM25"]
    assert set(found.to_frame()["model"]) == {"MiniLM", "BM25"}
    for table in (None, "tokens"):
        assert [trace.name for trace in found.figure(table).data] == ["MiniLM", "BM25"]
    with pytest.raises(poslens.UserError, match="'comparison': choose from tokens, matrix"):
        found.figure("comparison")
    compared = found.to_frame("comparison").set_index("model")
    assert compared["score"].to_dict() == pytest.approx(found.scores)
    assert (compared["tokens_read"] == compared["tokens"]).all(), "nothing is truncated"
    between = found.scores["BM25"] - found.scores["MiniLM"]
    assert compared["score_difference"]["BM25"] == pytest.approx(between)


def test_scores_are_shown_for_more_models_than_fit_a_heatmap(
    tiny_folder: Callable[..., Path],
) -> None:
    names = ["BM25", "bert", "bert-cls", "roberta", "distilbert"]
    models = ["BM25", *(str(tiny_folder(name)) for name in names[1:])]
    found = poslens.explain(models, QUERY, DOCUMENT, method="occlusion", level="sentence")
    shown = found._repr_html_()
    assert "<iframe" not in shown and all(name in shown for name in names)
    with pytest.raises(poslens.UserError, match="at most 4 models"):
        found.save("five.html")


def test_options_are_python_values(tmp_path: Path) -> None:
    words = {"steps": "50", "share": "0.5", "matrix": "yes"}
    assert option_words({"steps": 50.0, "share": 0.5, "matrix": True}) == words
    linked = poslens.explain("MiniLM", QUERY, DOCUMENT, method="decomposition", matrix=True)
    assert linked.results[0].attribution.matrix is not None
    attribution = linked.results[0].attribution
    saved = linked.save(tmp_path / "linked.json").read_text()
    options = ("--method", "decomposition", "--option", "matrix=yes", "--quiet")
    printed = CliRunner().invoke(
        explain_command, ["--query", QUERY, "--document", DOCUMENT, *options]
    )
    assert saved == printed.stdout and json.loads(saved)["score"] == attribution.score
    frame = pd.read_csv(linked.save(tmp_path / "linked.csv"))
    assert set(frame["pair_score"]) == {attribution.score}
    document = frame.loc[frame["side"] == "document", "score"].sum()
    parts = document + frame["bias_share"][0] + frame["completeness_error"][0]
    assert parts == pytest.approx(attribution.score, abs=1e-6)
    counted = poslens.explain("MiniLM", QUERY, DOCUMENT, method="integrated_gradients", steps=16)
    assert counted.results[0].attribution.method.params["steps"] == "16"


def test_curves_relocation_and_rankings_of_a_file_are_computed(_data: str, tmp_path: Path) -> None:
    curve = poslens.curve("BM25", _data, method="terms")
    assert curve.summary.n == 10 and curve.curve.shape == (100,)
    assert curve.center_of_mass.n == 10 and len(curve.to_frame()) == 100
    (row,) = curve.to_frame("summary").to_dict("records")
    index = curve.primacy_recency_index
    assert (row["pairs"], row["documents"], row["failed"]) == (10, 10, 0)
    assert row["primacy_recency_index"] == index.value
    # All documents have the same index, so it has no interval.
    assert (row["primacy_recency_index_low"], row["primacy_recency_index_high"]) == (None, None)
    assert index.interval is None
    saved = pd.read_csv(curve.save(tmp_path / "numbers.csv", "summary"))
    assert saved["center_of_mass"].tolist() == [curve.center_of_mass.value]
    with pytest.raises(
        poslens.UserError,
        match="curve has no table 'index': choose from curves, summary, differences, items, "
        "failures",
    ):
        curve.to_frame("index")
    moved = poslens.cause("BM25", _data)
    effects = moved.to_frame().set_index("intervention")
    assert effects["last_minus_first"]["relocation"] == pytest.approx(0, abs=1e-6), (
        "word statistics cannot see order"
    )
    assert len(moved.to_frame("curve")) == 200, "two interventions"
    for table in ("effects", "curve"):
        figure = moved.figure(table)
        lines = sorted({trace.yaxis for trace in figure.data})
        assert lines == ["y", "y2"], "they measure different quantities"
        assert figure.layout.yaxis.title.text.startswith("Relocation: score minus")
        assert figure.layout.yaxis2.title.text.startswith("Ablation: score lost")
    ranked = poslens.rank("BM25", _data)
    psi, bins = (ranked.to_frame(table).iloc[:20] for table in ("psi", "bins"))
    assert len(ranked.to_frame("queries")) == 10 and len(bins) == 20
    assert "nDCG@10" in repr(ranked) and "<table" in ranked._repr_html_()
    assert bins["nDCG@10"].isna().sum() == psi["empty bins"][0]
    assert psi["PSI"][0] == pytest.approx(1 - bins["nDCG@10"].min() / bins["nDCG@10"].max())
    means = moved.to_frame("curve")["mean"][:100]
    for figure, expected in ((curve.figure(), curve.curve), (moved.figure(), means)):
        shown = next(line.y for line in figure.data if line.mode and len(line.y) == 100)
        np.testing.assert_allclose(shown, expected, atol=1e-5)
    assert repr(curve).startswith(
        "<Curve of BM25 by terms over grey.jsonl: 10 pairs of 10 documents"
    )
    assert repr(moved).startswith("<Cause: BM25: the score does not change when the evidence")
    card = poslens.passport("BM25", _data)
    assert "relocation" in set(card.to_frame()["part"])
    assert card.figure().data and repr(card).startswith("<Passport of BM25: ")
    with pytest.raises(poslens.UserError, match="passport has no part 'nope': choose from attri"):
        card.figure("nope")
    with pytest.raises(poslens.UserError, match="no part 'nope'"):
        card.to_frame("nope")
    assert set(card.to_frame("ranking")["part"]) == {"ranking"}
    assert card.figure().layout.meta["figure"] == card.figure("relocation").layout.meta["figure"]
    for suffix in ("csv", "parquet", "tex"):
        card.save(tmp_path / f"card.{suffix}")
    numbers = pd.read_csv(tmp_path / "card.csv")
    np.testing.assert_allclose(numbers["value"], card.to_frame()["value"])
    entries = json.loads((tmp_path / "card.provenance.json").read_bytes())
    assert entries == [one.entry() for one in card.provenance]
    assert set(pd.read_parquet(tmp_path / "card.parquet")["part"]) == set(card.to_frame()["part"])
    drawn = card.save(tmp_path / "part.html", "relocation", size="single column")
    assert b"336" in drawn.read_bytes()
    with pytest.raises(poslens.UserError, match="name a part to draw"):
        card.save(tmp_path / "card.html", size="single column")


def test_parts_of_a_passport_are_computed_alone(_data: str, tmp_path: Path) -> None:
    card = poslens.passport("BM25", _data, part=["attribution", "ranking"], pairs=3)
    assert set(card.to_frame()["part"]) == {"attribution", "ranking"}
    assert set(card.to_frame("attribution")["n"]) == {3}
    both = poslens.passport(["BM25", "MiniLM"], _data, part=["ranking", "position_effect"])
    assert list(both) == ["BM25", "MiniLM"] and len(both) == 2
    shown = {trace.name: trace.y for trace in both.figure().data}
    for name in both:
        ranking = both[name].to_frame("ranking").set_index("measure")
        assert shown[name] == (ranking["value"]["ndcg_at_10"],)
    with pytest.raises(poslens.UserError, match=r"passport\['BM25'\].figure\('ranking'\), or draw"):
        both.figure("ranking")
    assert both["MiniLM"].figure("ranking").data
    with pytest.raises(KeyError, match=r"^passport has no model 'x': choose from BM25, MiniLM.$"):
        _ = both["x"]
    assert "x" not in both
    alone = poslens.passport(["BM25", "MiniLM"], _data, part=["relocation"])
    with pytest.raises(poslens.UserError, match="compute the parts ranking and position_effect"):
        alone.figure()
    nothing = poslens.passport("MiniLM", _data, part=["audit"], compute=False)
    with pytest.raises(poslens.UserError, match=r"results of these parts\. Not computed"):
        nothing.save(tmp_path / "x.csv")
    with pytest.raises(poslens.UserError, match=r"results of these parts\. Not computed"):
        nothing.figure()


def test_several_models_give_the_results_of_each_by_name(_data: str, tmp_path: Path) -> None:
    names = ["MiniLM", "BM25"]

    def curves(model):  # type: ignore[no-untyped-def]
        return poslens.curve(model, _data, method="occlusion", level="sentence")

    several, alone = curves(names), {model: curves(model) for model in names}
    assert list(several) == names
    for model in names:
        np.testing.assert_array_equal(several[model].curve, alone[model].curve)
    rows = pd.concat([alone[model].to_frame() for model in names], ignore_index=True)
    pd.testing.assert_frame_equal(several.to_frame().reset_index(drop=True), rows)
    assert {trace.name for trace in several.figure("differences").data} >= set(names)
    with pytest.raises(poslens.UserError, match="no figure of the table 'failures': choose from"):
        several.figure("failures")
    several.save(tmp_path / "curves.csv")
    # A figure of a column's width, with a palette of the commands.
    column = several.save(tmp_path / "curves.svg", size="single column", palette="tol-bright")
    text = column.read_text()
    assert 'width="336"' in text and "rgb(68, 119, 170)" in text
    with pytest.raises(poslens.UserError, match=r"There is no size 'tiny': choose from screen, "):
        several.save(tmp_path / "curves.svg", size="tiny")
    entries = json.loads((tmp_path / "curves.provenance.json").read_bytes())
    assert [entry["model"] for entry in entries] == names
    (row,) = several.to_frame("differences").to_dict("records")
    indices = [several[name].primacy_recency_index.value for name in names]
    assert [row["other_value"], row["value"]] == pytest.approx(indices)
    assert row["difference"] == pytest.approx(indices[1] - indices[0])
    assert len(several.verdicts) == 3 and "BM25" in several.verdicts[2]
    assert several.to_frame("failures").empty
    with pytest.raises(
        poslens.UserError, match=r"^curve has no model 'MiniLM-recency': choose from MiniLM, BM25.$"
    ):
        _ = several["MiniLM-recency"]
    assert "MiniLM-recency" not in several
    ranked = poslens.rank(names, _data)
    rows = pd.concat([poslens.rank(name, _data).to_frame() for name in names], ignore_index=True)
    pd.testing.assert_frame_equal(ranked.to_frame(), rows)
    assert {trace.name for trace in ranked.figure().data} >= set(names)
    assert ranked.to_frame("differences")["n"].tolist() == [10]
    cards = poslens.passport(names, _data, compute=False)
    assert [card.name for card in cards.cards] == names
    baseline = cards.save(tmp_path / "baseline.json")
    checks = poslens.check(names, baseline, _data, only=["ranking"])
    assert list(checks) == names
    assert all(check.name == "ranking" for model in names for check in checks[model])


def test_parts_are_compared_with_the_whole_text(_data: str) -> None:
    thirds = poslens.segments("MiniLM", _data, parts="thirds")
    (row,) = thirds.to_frame().to_dict("records")
    assert row["n"] == 10 and len(thirds.to_frame("curve")) == 100
    (provenance,) = thirds.provenance
    assert (provenance.n_pairs, provenance.n_documents) == (None, 10), "no query is used"
    layout = thirds.figure().layout
    assert layout.yaxis.title.text == "Cosine with the whole text's vector"
    assert layout.xaxis.title.text == "Relative position in the tokens read (%)"


def test_a_model_in_memory_is_accepted(tmp_path: Path) -> None:
    folder = tiny_models.build("bert", tmp_path)
    own = SentenceTransformer(str(folder), device="cpu")
    first = poslens.explain(own, QUERY, DOCUMENT)
    again = poslens.explain(own, QUERY, DOCUMENT)
    (q, d) = own.encode([QUERY, DOCUMENT])
    assert first.score == pytest.approx(float(own.similarity(q, d)), abs=1e-5)
    assert first.scores == again.scores, "one fingerprint, so one cached result"
    assert again.results[0].from_cache


def test_saved_models_in_memory_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    root = tmp_path / "home" / "models" / "notebook"
    # Models from ten minutes ago, of which the first was used last; a partial one that a killed
    # process left yesterday; and one from just now.
    for n in range(12):
        (root / f"model-{n:02}").mkdir(parents=True)
        os.utime(root / f"model-{n:02}", (time.time() - 600 - n,) * 2)
    (root / "new-killed").mkdir()
    os.utime(root / "new-killed", (time.time() - 90_000,) * 2)
    (root / "new-written").mkdir()
    own = SentenceTransformer(str(tiny_models.build("bert", tmp_path)), device="cpu")
    folders = {saved_models.folder_of(own) for _ in range(2)}
    own.max_seq_length = 16
    folders.add(saved_models.folder_of(own))
    assert len(folders) == 2
    left = {f"model-{n:02}" for n in range(saved_models.KEPT - 2)}
    assert {path.name for path in root.iterdir()} == {f.name for f in folders} | left | {
        "new-written"
    }


def test_a_model_in_memory_is_saved_again_only_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    own = SentenceTransformer(str(tiny_models.build("bert", tmp_path)), device="cpu")
    written = []
    save = own.save
    monkeypatch.setattr(
        type(own), "save", lambda self, *a, **k: (written.append(a), save(*a, **k))[-1]
    )
    first = saved_models.folder_of(own)
    assert saved_models.folder_of(own) == first and len(written) == 1
    weight = next(own.parameters())
    versions = weight._version

    def scale() -> None:
        weight.data.mul_(2)  # which doesn't change its version counter

    def read_less() -> None:
        own.max_seq_length = 16

    def pad_left() -> None:
        own.tokenizer.padding_side = "left"

    folders = {first}
    for change in (scale, read_less, pad_left):
        change()
        folders.add(saved_models.folder_of(own))
    assert weight._version == versions
    assert len(written) == 4 and len(folders) >= 3, "padding may not be part of what is saved"
    shutil.rmtree(first)
    weight.data.div_(2)
    assert saved_models.folder_of(own).is_dir()


class Counts:
    """Vectors that count words: a model outside any library."""

    def encode(self, texts: list[str]) -> list[list[float]]:
        """One dimension for each remainder of a word's sum."""
        return [[float(x) for x in row] for row in hashed(texts)]


def test_an_object_with_encode_is_accepted_as_a_model(_data: str) -> None:
    own = Counts()
    found = poslens.explain([own, "BM25"], QUERY, DOCUMENT, method="occlusion")
    (name, _) = found.scores
    query, document = hashed([QUERY, DOCUMENT])
    norm = np.linalg.norm(query) * np.linalg.norm(document)
    assert name.startswith("Counts-") and found.score == pytest.approx(query @ document / norm)
    assert found.provenance[0].model_source == f"object of {Counts.__module__}.Counts"
    assert poslens.explain(Counts(), QUERY, DOCUMENT, method="occlusion").results[0].from_cache
    read = reading(found.results[0])
    assert read.title.startswith("The object's context limit is unknown. poslens.audit measures it")
    curve = poslens.curve(own, _data, method="occlusion", level="sentence")
    assert curve.summary.n == 10 and curve.curve.shape == (100,)
    moved = poslens.cause(own, _data)
    relocation = moved.to_frame().set_index("intervention").loc["relocation"]
    assert relocation["last_minus_first"] == pytest.approx(0, abs=1e-6), "counts cannot see order"
    assert poslens.rank(own, _data).to_frame()["model"].tolist() == [name]
    assert name in repr(poslens.passport(own, _data))
    with pytest.raises(
        poslens.UserError, match=r"saliency is unavailable for Counts-.*no gradients"
    ):
        poslens.explain(own, QUERY, DOCUMENT)


def test_models_that_a_study_does_not_fit_are_listed_with_the_failures(_data: str) -> None:
    result = poslens.segments(["MiniLM", "BM25"], _data, documents=3)
    (row,) = result.to_frame("failures").to_dict("records")
    assert (row["model"], row["item"]) == ("BM25", None) and "BM25" in row["reason"]
    assert [summary.name for summary in result.summaries] == ["MiniLM"] * 2


class Unsteady(Counts):
    """Vectors of all texts but one."""

    def encode(self, texts: list[str]) -> list[list[float]]:
        """Counts.

        Raises:
            RuntimeError: a text is about salt.
        """
        if any("salt" in text for text in texts):
            raise RuntimeError("out of salt")
        return super().encode(texts)


def test_a_model_whose_run_fails_leaves_the_results_of_the_others(
    _data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = poslens.audit([Unsteady(), "BM25"], _data, top=1)
    assert result.to_frame()["model"].tolist() == ["BM25"]
    assert "out of salt" in capsys.readouterr().err
    (failed,) = result.failures
    assert failed.model.startswith("Unsteady-") and "out of salt" in failed.reason
    with pytest.raises(poslens.UserError, match="out of salt"):
        poslens.audit(Unsteady(), _data, top=1)
    # A run of several parts has no error of its own.
    of_parts = poslens.control([Unsteady(), "BM25"], _data, method="occlusion", control="shuffled")
    assert [summary.name for summary in of_parts.summaries] == ["BM25"]
    assert [row.model for row in of_parts.failures] == [failed.model]


def test_models_have_the_names_that_a_mapping_gives_them(
    _data: str, tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    base, tuned = (SentenceTransformer(str(tiny_folder("bert")), device="cpu") for _ in range(2))
    next(tuned.parameters()).data.mul_(2)
    own = Counts()
    given = {"base": base, "tuned": tuned, "folder": tiny_folder("bert"), "own": own}
    found = poslens.explain(given, QUERY, DOCUMENT, method="occlusion", level="sentence")
    assert list(found.scores) == list(given)
    assert found.scores["base"] == pytest.approx(found.scores["folder"], abs=1e-5)
    assert found.scores["base"] != pytest.approx(found.scores["tuned"], abs=1e-3)
    counted = poslens.explain(own, QUERY, DOCUMENT, method="occlusion", level="sentence")
    assert found.scores["own"] == counted.score
    assert [trace.name for trace in found.figure().data] == list(given)
    presets = {"words": "BM25", "late": "MiniLM-recency", "early": "MiniLM-primacy@0.5"}
    effects = poslens.cause(presets, _data, interventions=["relocation"]).to_frame()
    unnamed = poslens.cause([*presets.values()], _data, interventions=["relocation"]).to_frame()
    assert effects["model"].tolist() == list(presets)
    np.testing.assert_array_equal(effects["last_minus_first"], unnamed["last_minus_first"])
    cards = poslens.passport({"base": "BM25", "other": own}, _data, part=["ranking"])
    baseline = cards.save(tmp_path / "named.json")
    assert list(poslens.check({"base": "BM25", "other": own}, baseline, _data)) == ["base", "other"]
    # A name can be given to another model.
    renamed = poslens.explain({"own": tuned}, QUERY, DOCUMENT, method="occlusion", level="sentence")
    assert renamed.score == found.scores["tuned"]


@pytest.mark.parametrize("study", ["rank", "audit", "chunks"])
def test_the_provenance_names_the_data_set_that_was_asked_for(study: str) -> None:
    for name in ("first", "second"):
        settings = {} if study == "rank" else {"top": 1}
        found = getattr(poslens, study)("BM25", {name: ROWS}, **settings)
        assert {one.dataset for one in found.provenance} == {name}


def test_a_path_can_have_a_name(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    curve = poslens.curve("BM25", {"tides": path}, method="terms")
    assert [entry.dataset for entry in curve.provenance] == ["tides"]


def test_rows_in_memory_are_a_data_set(_data: str) -> None:
    frame = pd.DataFrame(ROWS)

    def curve(data: object) -> Curves:
        return poslens.curve("BM25", data, method="terms")  # type: ignore[arg-type]

    of_file, of_frame = curve(_data), curve(frame)
    np.testing.assert_array_equal(of_frame.curve, of_file.curve)
    (name,) = {one.dataset for one in of_frame.provenance}
    assert re.fullmatch("data-[0-9a-f]{8}", name)
    root = data_folder() / "collections" / "python"
    (written,) = root.glob(f"{name}*.parquet")
    changed = written.stat().st_mtime_ns
    assert curve(ROWS).provenance == of_frame.provenance, "equal rows are one data set"
    assert written.stat().st_mtime_ns == changed
    (other,) = {one.dataset for one in curve(frame.iloc[:5]).provenance}
    assert other != name
    assert curve({"grey": frame}).provenance[0].dataset == "grey"
    assert curve({"grey": frame.iloc[:5]}).summary.n == 5, "a name can be given to other rows"
    offsets = frame.drop(columns="evidence").assign(evidence_start=15.0, evidence_end=20.0)
    offsets.loc[0, ["evidence_start", "evidence_end"]] = np.nan
    assert curve(offsets).summary.n == 10
    documents = pd.DataFrame({"text": frame["document"]})
    assert len(poslens.audit("BM25", documents, top=1).to_frame()) == 1
    ranked = poslens.rank("BM25", [*ROWS, {"query": "what"}])
    assert ranked.to_frame("queries").shape[0] == 10, "rows are rejected one by one"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poslens.explain("nope/nope", QUERY, DOCUMENT), "is not on this machine yet"),
        (lambda: poslens.explain("MiniLM", " ", DOCUMENT), "The query is empty"),
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence="no"),
            "does not occur in the document",
        ),
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence=(5, 500)),
            "is outside the document",
        ),
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence=(10, 5)),
            "characters 10 to 5, must end after it starts",
        ),
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence=(5, 5)),
            "characters 5 to 5, must end after it starts",
        ),
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence=(-3, 5)),
            "is outside the document",
        ),
        (lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, method="x"), "There is no method"),
        (lambda: poslens.explain(3, QUERY, DOCUMENT), "type int is not a model"),  # type: ignore[arg-type]
        (lambda: poslens.explain([], QUERY, DOCUMENT), "No model is given"),
        (lambda: poslens.explain({}, QUERY, DOCUMENT), "No model is given"),
        (lambda: poslens.explain({"a@b": "BM25"}, QUERY, DOCUMENT), "without = and @, not 'a@b'"),
        (lambda: poslens.explain({"": "BM25"}, QUERY, DOCUMENT), "without = and @, not ''"),
        (lambda: poslens.explain({3: "BM25"}, QUERY, DOCUMENT), "without = and @, not 3"),  # type: ignore[dict-item]
        (
            lambda: poslens.explain({"MiniLM": "BM25"}, QUERY, DOCUMENT),
            "MiniLM is already the name of another model",
        ),
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT).to_frame("rows"),  # type: ignore[arg-type]
            "no table 'rows': choose from tokens, comparison, matrix",
        ),
        (lambda: poslens.curve("BM25", pairs=-1), "not -1"),
        (lambda: poslens.curve([]), "No model is given"),
        (lambda: poslens.rank("BM25", by="position"), "no parameter 'by'"),
        (lambda: poslens.run_study(5, "BM25"), "There is no study '5'"),  # type: ignore[arg-type]
        (
            lambda: poslens.cause("BM25", interventions=["x"]),
            "Interventions: choose from reloc",
        ),
        (
            lambda: poslens.cause("BM25", interventions=["relocation"], by="mask"),
            "choose ablation",
        ),
        (lambda: poslens.cause("BM25", by="x"), "delete"),
        (lambda: poslens.segments("BM25"), "BM25"),
        (lambda: poslens.rank("BM25").to_frame("x"), "no table 'x': choose from measures"),
        (lambda: poslens.rank("BM25").to_frame("groups"), "no groups of queries"),
        (
            lambda: poslens.rank("BM25").figure("x"),
            "no figure of the table 'x': choose from measures, psi",
        ),
        (
            lambda: poslens.rank("BM25").figure("pools"),
            "no figure of the table 'pools': choose from measures, psi",
        ),
        (lambda: poslens.rank("BM25").figure("groups"), "sample .* has no groups of queries"),
        (lambda: poslens.rank("BM25").figure(5), "the table of type int: choose"),  # type: ignore[arg-type]
        (lambda: poslens.rank("BM25").to_frame(["psi"]), "no table of type list: choose"),  # type: ignore[arg-type]
        (
            lambda: poslens.rank("BM25").figure(style="tol-bright"),  # type: ignore[arg-type]
            r"style must be a poslens.figures.palettes.Style, not str: .* save\(path, size=",
        ),
        (
            lambda: poslens.explain("BM25", QUERY, DOCUMENT, method="terms").save("x.svg", "x"),
            "no figure of the table 'x': choose from tokens, matrix",
        ),
        (lambda: poslens.rank("BM25", "nope"), "nope"),
        (lambda: poslens.rank("BM25", 5), "data set can't be of type int: use a name, a path"),  # type: ignore[arg-type]
        (lambda: poslens.curve("BM25", None), "data set can't be of type NoneType"),  # type: ignore[arg-type]
        (lambda: poslens.curve("BM25", [1]), "data set can't be of type list"),  # type: ignore[list-item]
        (lambda: poslens.curve("BM25", []), "lacks the columns query, document"),
        (lambda: poslens.curve("BM25", {"a": ROWS, "b": ROWS}), "only as {name: path} or"),
        (lambda: poslens.curve("BM25", {"sample": ROWS}), "sample is the name of a bundled"),
        (
            lambda: poslens.curve("BM25", pd.DataFrame({"query": [1, "x"]})),
            "can't be written as a table .*column query.*: give the values of each column one type",
        ),
        (
            lambda: poslens.curve("BM25", [{**ROWS[0], "query_id": 10**30}]),
            "can't be written as a table .*too large",
        ),
        (lambda: poslens.rank("BM25", Path("nope.csv")), "nope.csv is not a folder or a file"),
        (lambda: poslens.curve("BM25", pairs="many"), "not many"),  # type: ignore[arg-type]
        (lambda: poslens.explain("MiniLM", None, DOCUMENT), "query must be a string, not None"),  # type: ignore[arg-type]
        (lambda: poslens.explain("MiniLM", QUERY, 1.5), "document must be a string, not float"),  # type: ignore[arg-type]
        (lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence=5), r"or its \(start, end\)"),  # type: ignore[arg-type]
        (lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, normalization=3), "can't be '3'"),
        (
            lambda: poslens.check("MiniLM", "nope.json", only="relocation"),
            r"such as \['relocation'\]",
        ),
        (lambda: poslens.check("MiniLM", "nope.json", only=[]), "only is empty"),
        (lambda: poslens.check("MiniLM", "nope.json", only=5), r"such as \['relocation'\]"),  # type: ignore[arg-type]
        (lambda: poslens.check("MiniLM", "nope.json", only=[1, "x"]), "no check 1: choose"),  # type: ignore[list-item]
        (
            lambda: poslens.check("MiniLM", "nope.json", foo=0.1),
            "no tolerance 'foo': choose from relocation, position_effect",
        ),
        (
            lambda: poslens.check("MiniLM", "nope.json", relocation="x"),
            "tolerance of relocation must be 0 or more",
        ),  # type: ignore[arg-type]
        (lambda: poslens.check("MiniLM", None), "baseline must be a path, not NoneType"),  # type: ignore[arg-type]
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, method=5),
            "must be a name, not int: choose",
        ),  # type: ignore[arg-type]
        (lambda: poslens.curve("MiniLM", method=["saliency"]), "must be a name, not list: choose"),  # type: ignore[arg-type]
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, language=5),
            "language must be a string",
        ),  # type: ignore[arg-type]
        (
            lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence=(1.7, 3.9)),
            r"\(start, end\)",
        ),  # type: ignore[arg-type]
        (lambda: poslens.explain("MiniLM", QUERY, DOCUMENT, evidence=(math.inf, 2)), r"\(start, e"),  # type: ignore[arg-type]
        (lambda: poslens.passport("BM25", moved=1), "whole number from 2, not 1"),
        (lambda: poslens.passport("BM25", pairs=1), "pairs must be a whole number from 2, not 1"),
        (lambda: poslens.passport("BM25", part=["x"]), "no part 'x': choose from attribution, "),
        (lambda: poslens.passport("BM25", part="ranking"), r"such as \['attribution'\], not 'rank"),
        (lambda: poslens.passport("BM25", moved="5"), "whole number from 2, not 5"),  # type: ignore[arg-type]
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(call: object, message: str) -> None:
    with pytest.raises(poslens.UserError, match=message) as found:
        call()  # type: ignore[operator]
    assert "\n" not in str(found.value)


def test_library_settings_are_restored_after_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    logger = logging.getLogger("poslens.attribution.retrievers")

    def state() -> tuple[object, ...]:
        bars = transformers_logging.is_progress_bar_enabled()
        return transformers_logging.get_verbosity(), bars, logger.level, dict(os.environ)

    class Noted(Counts):
        """Records library settings during a call."""

        def encode(self, texts: list[str]) -> list[list[float]]:
            noted.append(state())
            return super().encode(texts)

    noted: list[tuple[object, ...]] = []
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_info()
    transformers_logging.enable_progress_bar()
    try:
        before = state()
        poslens.explain(Noted(), QUERY, DOCUMENT, method="occlusion")
        assert state() == before
        with pytest.raises(poslens.UserError):
            poslens.explain(Noted(), QUERY, DOCUMENT, method="saliency")
        assert state() == before
    finally:
        transformers_logging.set_verbosity(level)
        if not bars:
            transformers_logging.disable_progress_bar()
    assert {one[:3] for one in noted} == {(logging.ERROR, False, logging.CRITICAL)}


class Interrupted:
    """A job and its run, whose `wait` is always interrupted by Ctrl-C."""

    label, total, error, parts, first = "a run", 3, "", (), None

    def __init__(self) -> None:
        self.done: list[str] = []

    def quote(self, retry_failed: bool) -> str:
        """Nothing is sent."""
        return ""

    def n_done(self) -> int:
        """Pairs that are stored."""
        return 0

    def start(self, show: object, *, retry_failed: bool) -> Interrupted:
        """The run."""
        return self

    def wait(self) -> None:
        """Interrupted."""
        self.done.append("wait")
        raise KeyboardInterrupt

    def stop(self) -> None:
        """Asked to end."""
        self.done.append("stop")


def test_ctrl_c_pressed_twice_ends_the_call_and_not_the_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("the notebook's process ended"))
    before, job = signal.getsignal(signal.SIGTERM), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        arguments.run_job(job)  # type: ignore[arg-type]
    assert job.done == ["wait", "stop", "wait"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_models_methods_and_data_sets_are_listed() -> None:
    assert {"MiniLM", "BM25"} <= set(poslens.models()["name"])
    assert {"saliency", "decomposition"} <= set(poslens.methods()["name"])
    assert "sample" in set(poslens.datasets()["name"])
    assert set(dir(poslens)) == {*poslens.__all__, *declared()}
    assert all(hasattr(poslens, name) for name in dir(poslens))
    assert calls.explain is poslens.explain


def test_the_import_loads_no_heavy_libraries() -> None:
    code = "import sys, poslens; print(sorted({'torch', 'pandas', 'streamlit'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert found.stdout.strip() == "[]"


def test_the_page_about_python_names_every_public_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "docs/python.md", "exec")
    named = set(re.findall(r"poslens\.([a-zA-Z_]+)", page))
    assert named == {*poslens.__all__, *declared()}


def test_the_matrix_of_an_explanation_is_a_table_and_a_figure(tmp_path: Path) -> None:
    result = poslens.explain("MiniLM", QUERY, DOCUMENT, method="bilrp")
    attribution = result.results[0].attribution
    frame = result.to_frame("matrix")
    assert attribution.matrix is not None and len(frame) == attribution.matrix.size
    last = frame.iloc[-1]
    assert (last.query_token, last.document_token) == (
        attribution.query.texts[-1],
        attribution.document.texts[-1],
    )
    assert last.score == attribution.matrix[-1, -1]
    figure = result.figure("matrix")
    assert figure.layout.meta["figure"] == "interaction_matrix"
    content = np.ix_(attribution.query.content, attribution.document.content)
    np.testing.assert_allclose(figure.data[0].customdata, attribution.matrix[content], rtol=1e-6)
    drawn = result.save(tmp_path / "matrix.html", "matrix").read_text()
    assert "interaction_matrix" in drawn
    both = poslens.explain(["MiniLM", "MiniLM-recency"], QUERY, DOCUMENT, method="bilrp")
    with pytest.raises(poslens.UserError, match="shows one model: explain a single model"):
        both.figure("matrix")
    with pytest.raises(poslens.UserError, match="There is no matrix"):
        poslens.explain("MiniLM", QUERY, DOCUMENT, method="occlusion").to_frame("matrix")


def test_a_language_may_have_any_of_its_codes() -> None:
    texts = ("海洋", "海洋很大。天空很蓝。")
    explained = poslens.explain("BM25", *texts, method="terms", language="zho")
    assert explained.results[0].pair.language == "cmn"
