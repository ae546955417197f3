"""Bias tests: runs and tables, the chart, the page and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.evaluation.bias_pairs import BiasPairs, available, pairs_for
from poslens.attribution.evaluation.bias_tests import TESTS, PairScores, paired_test
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute, service
from poslens.dashboard.__main__ import app
from poslens.dashboard.widgets import panels
from poslens.figures.curves import PRESETS, Style
from poslens.figures.palettes import text_width
from poslens.studies.bias import service as bias_service
from poslens.studies.bias.figures import MEASURES, bar, bias_chart
from tests.support.pages import SECONDS, page_file

PAGE = page_file("bias")


@pytest.fixture(autouse=True)
def unchanged_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_folders", dict(datasets._folders))
    monkeypatch.setattr(datasets, "_variants", dict(datasets._variants))


pytestmark = pytest.mark.usefixtures("own_service")


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compute]:
    yield Compute(tmp_path_factory.mktemp("bias"))


@pytest.fixture(scope="module")
def tests() -> list[BiasPairs]:
    data = datasets.read("sample-bias")
    return [pairs_for(data, name) for name in available(data)]


def bm25() -> RetrieverSpec:
    return with_corpus(resolve("BM25"), "sample-bias")


@pytest.fixture(scope="module")
def results(
    compute: Compute, tests: list[BiasPairs], one_thread: None
) -> dict[str, list[bias_service.Tested]]:
    found = {}
    for spec in (resolve("MiniLM-primacy"), resolve("MiniLM-recency"), bm25()):
        run = bias_service.job(compute, spec, tests, "all").start()
        run.wait()
        assert not run.error and run.progress.done == 84
        found[spec.name] = bias_service.tested(compute, spec, tests)
    return found


def of(results: list[bias_service.Tested], test: str) -> bias_service.Tested:
    return next(one for one in results if one.result.test == test)


def test_planted_bias_has_its_sign_and_bm25_none(results) -> None:
    t = {name: of(found, "position").result.t for name, found in results.items()}
    assert t["MiniLM-primacy"] > 5 and t["MiniLM-recency"] < -5
    flat = of(results["BM25"], "position")
    assert t["BM25"] is None and flat.result.difference == 0
    assert bias_service.remarks([flat]) == {
        "Every pair scores the same for d1 and d2: this model does not see the difference.": [
            "BM25, position"
        ]
    }
    assert (of(results["BM25"], "literal").result.t or 0) > 5


def test_the_table_and_holms_p(results) -> None:
    found = bias_service.with_adjusted_p([one for group in results.values() for one in group])
    frame = bias_service.test_frame(found)
    assert len(frame) == 21 and frame["p (Holm)"].isna().sum() == 1
    known = frame.dropna(subset=["p"])
    assert (known["p (Holm)"] >= known["p"]).all()
    assert known["p"].min() * 20 == pytest.approx(known["p (Holm)"].min())
    assert "accuracy" not in frame, "which order it counted depended on the test"
    position = frame[(frame["model"] == "MiniLM-primacy") & (frame["test"] == "position")].iloc[0]
    assert (position["d1 preferred"], position["resistance (mteb)"]) == (1, 0)
    assert position["mteb prefers"] == "d2"
    important = frame[frame["test"] == "answer_importance"]
    assert (important["d1 preferred"] == important["resistance (mteb)"]).all()
    one = of(found, "poison")
    pairs = bias_service.pair_frame(one)
    assert len(pairs) == 12 and pairs["difference"].is_monotonic_decreasing
    assert pairs["difference"].mean() == pytest.approx(one.result.difference)
    made = bias_service.provenance_of([one])
    assert (made.n_pairs, made.dataset) == (12, "sample-bias") and "bias_scores" in made.method


def test_identical_documents_are_left_out_and_counted(compute: Compute) -> None:
    pairs = pairs_for(datasets.read("sample"), "position", "own")
    same = [pair for pair in pairs.pairs if pair.identical]
    others = [pair for pair in pairs.pairs if not pair.identical][:2]
    some = BiasPairs("position", (*same[:3], *others), pairs.source)
    spec = with_corpus(resolve("BM25"), "sample")
    bias_service.job(compute, spec, [some], "own").start().wait()
    (found,) = bias_service.tested(compute, spec, [some])
    assert (found.result.n, found.result.n_identical, found.missing) == (2, 3, 0)
    assert found.result.remarks[0] == "3 pairs with identical documents left out."


@pytest.mark.parametrize("method", ["decomposition", "saliency"])
def test_a_contrast_is_drawn_with_both_signs(compute: Compute, tests, method: str) -> None:
    pair = tests[1].pairs[0]
    spec, how = resolve("MiniLM-recency"), make_method(method)
    results = [compute.explain(one, spec, how) for one in (pair.first, pair.second)]
    found = bias_service.contrasted(*results)
    first, second = found.shown()
    assert (first.attribution.model, second.attribution.model) == ("d1", "d2")
    drawn = second.attribution.document_scores
    if method == "saliency":
        assert found.contrast is None and "no shares that add up" in found.reason
        assert (drawn == found.second.attribution.document_scores).all()
        assert not any(one.units for one in found.provenance())
        return
    parts = found.contrast
    assert parts is not None and (drawn == -found.second.attribution.document_scores).all()
    total = float(first.attribution.document_scores.sum() + drawn.sum())
    assert total + parts.bias == pytest.approx(parts.difference, abs=1e-3)
    assert f"{parts.difference:+.4f}" in bias_service.contrast_note(parts)
    # The files say which row is of which document, and that d2's have the other sign.
    made = [(one.selection[-2:], one.units) for one in found.provenance()]
    assert made == [("/1", ""), ("/2", "shares negated, for s(d1) − s(d2)")]
    frame = panels.explained_frame([first, second], "document")
    assert frame["document"].unique().tolist() == ["d1", "d2"]
    assert frame["model"].unique().tolist() == ["MiniLM-recency"]
    assert bias_service.fitting(compute, resolve("MiniLM"))[0] == "decomposition"
    assert bias_service.fitting(compute, bm25())[0] == "terms"


@pytest.mark.parametrize("measure", MEASURES)
def test_the_chart_holds_every_result(results, measure: str) -> None:
    found = [one for group in results.values() for one in group]
    bars = [bar(one.model.spec.name, one.result, measure) for one in found]
    made = [bias_service.provenance_of(group) for group in results.values()]
    figure = bias_chart(bars, measure, Style(), made)
    assert len(figure.layout.meta["provenance"]) == 3
    assert [trace.name for trace in figure.data] == list(results)
    for trace, (name, group) in zip(figure.data, results.items(), strict=True):
        assert [list(custom) for custom in trace.customdata] == [[name, test] for test in TESTS]
        for height, up, one in zip(trace.y, trace.error_y.array, group, strict=True):
            known = one.result
            wanted = {
                "t": known.t,
                "mean difference": known.difference,
                "effect size": known.effect_size,
            }[measure]
            assert height == pytest.approx(wanted or 0)
            if measure == "mean difference":
                assert height + up == pytest.approx(known.high)
    words = [text for trace in figure.data for text in trace.text if text]
    assert words == ([] if measure == "mean difference" else ["tie"])


def test_the_labels_fit_into_a_column(results) -> None:
    style = PRESETS["single column"]
    bars = [bar("x", one.result, "t") for one in results["MiniLM-primacy"]]
    axis = bias_chart(bars, "t", style).layout.xaxis
    room = (style.width_px - 6 * style.font_size) / len(TESTS)
    assert all(text_width(label, axis.tickfont.size) <= room for label in axis.categoryarray)
    assert len(set(axis.categoryarray)) == len(TESTS)


def test_what_is_not_scored_to_the_end_is_not_judged(results) -> None:
    one = of(results["BM25"], "position")
    assert bias_service.remarks([one]) and not bias_service.remarks([replace(one, missing=1)])


def test_names_from_data_are_escaped_in_the_chart() -> None:
    found = paired_test("foil", [PairScores(i * i, i) for i in range(4)])
    figure = bias_chart([bar("<b>x</b>", found, "t")], "t", Style())
    assert "<b>" not in figure.data[0].name and "<b>" not in figure.data[0].hovertext[0]


# -- the page ----------------------------------------------------------------------------------


def opened(**query: object) -> AppTest:
    page = AppTest.from_file(str(PAGE), default_timeout=SECONDS)
    for name, value in query.items():
        page.query_params[name] = value  # type: ignore[assignment]
    return page.run()


def test_the_page_runs_and_shows_its_results(tests) -> None:
    page = opened(models=["BM25"])
    assert not page.exception and not page.error
    assert any("press Test" in info.value for info in page.info)
    page.button(key="bias.start").click().run()
    run = bias_service.job(service(), bm25(), [], f"sample-bias: {', '.join(TESTS)}; end; 250").run
    assert run is not None
    run.wait()
    page = opened(models=["BM25"], test="brevity", item="brevity_bias/iss")
    assert not page.exception and not page.error
    chart = json.loads(page.get("plotly_chart")[0].proto.spec)
    assert [trace["name"] for trace in chart["data"]] == ["BM25"]
    table = page.dataframe[0].value
    assert list(table["test"]) == list(TESTS) and (table["n"] == 12).all()
    assert any("does not see the difference" in warning.value for warning in page.warning)
    assert len(page.dataframe[1].value) == 12
    assert any("in one colour range" in caption.value for caption in page.caption)
    assert {metric.label for metric in page.metric} == {"s(d1)", "s(d2)", "s(d1) − s(d2)"}


def test_a_data_set_with_spans_offers_what_they_are_enough_for() -> None:
    page = opened(models=["BM25"], dataset="sample", pairs="5", tests=["position"])
    assert not page.exception and not page.error
    assert page.multiselect(key="tests").options == ["position", "brevity"]
    assert page.selectbox(key="place").value == "end"
    assert any("Not literal match" in caption.value for caption in page.caption)
    page.button(key="bias.start").click().run()
    spec = with_corpus(resolve("BM25"), "sample")
    run = bias_service.job(service(), spec, [], "sample: position; end; 5").run
    assert run is not None
    run.wait()
    page = opened(models=["BM25"], dataset="sample", pairs="5", tests=["position"])
    assert page.dataframe[0].value["n"].tolist() == [5]


def test_a_model_that_is_not_there_is_said_once_and_the_others_run() -> None:
    page = opened(models=["BM25", "no-such-model"], tests=["literal", "brevity"])
    assert not page.exception and len(page.error) == 1
    page.button(key="bias.start").click().run()
    run = bias_service.job(service(), bm25(), [], "sample-bias: literal, brevity; end; 250").run
    assert run is not None
    run.wait()
    page = opened(models=["BM25", "no-such-model"], tests=["literal", "brevity"])
    assert not page.exception and set(page.dataframe[0].value["model"]) == {"BM25"}


def test_fewer_than_ten_pairs_are_shown_with_a_warning() -> None:
    tests = [pairs_for(datasets.read("sample-bias"), "literal", limit=5)]
    bias_service.job(service(), bm25(), tests, "few").start().wait()
    page = opened(models=["BM25"], pairs="5", tests=["literal"])
    assert page.dataframe[0].value["n"].tolist() == [5]
    assert any("Only 5 documents" in warning.value for warning in page.warning)


# -- the command -------------------------------------------------------------------------------


def command(*arguments: str):
    return CliRunner().invoke(app, ["bias", *arguments], catch_exceptions=False)


def test_the_command_prints_the_table() -> None:
    done = command("--model", "BM25", "--test", "position", "--test", "foil")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(row["test"], row["n"]) for row in found["rows"]] == [("position", 12), ("foil", 12)]
    assert found["rows"][0]["t"] is None and found["provenance"][0]["model"] == "BM25"
    assert "does not see the difference" in done.stderr
    twice = command("--model", "BM25", "--model", "BM25", "--test", "position", "--test", "foil")
    assert json.loads(twice.stdout)["rows"] == found["rows"], "p is adjusted for two tests"
    again = command("--model", "BM25", "--test", "position", "--format", "csv")
    assert again.stdout.splitlines()[-1].startswith('"BM25","position",12,12,"","",""')


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dataset", "sample", "--test", "foil"], "evidence spans alone do not say"),
        (["--test", "x"], "no bias test 'x'"),
        (["--place", "x"], "place cannot be 'x'"),
        (["--dataset", "nothing"], "no data set 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = command("--model", "BM25", *arguments)
    assert done.exit_code == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


def test_a_data_set_without_spans_has_no_bias_test(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n")
    done = command("--model", "BM25", "--dataset", str(own))
    assert done.exit_code == 2 and "no bias test for it" in done.stderr


def test_identical_documents_alone_are_refused(tmp_path: Path) -> None:
    row = {"query": "q", "document_1": "Ice melts.", "document_2": "Ice melts."}
    (tmp_path / "brevity_bias.jsonl").write_text(json.dumps(row) + "\n")
    done = command("--model", "BM25", "--dataset", str(tmp_path))
    assert done.exit_code == 2
    assert "Brevity: both documents of every pair are identical" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.csv", b"query,document\n", "holds no rows"),
        ("empty.csv", b"query,document\n,x\n", "None of the 1 rows"),
        ("nothing.jsonl", b"", "holds no rows"),
    ],
)
def test_an_empty_upload_is_one_sentence_and_the_page_stays(
    name: str, content: bytes, said: str
) -> None:
    page = opened(models=["BM25"])
    page.file_uploader[0].upload(name, content).run()
    assert not page.exception
    (error,) = page.error
    assert said in error.value.replace("\\", "")
    assert any("press Test" in info.value for info in page.info), "the former data set stays"


def test_an_upload_without_evidence_says_what_tests_need() -> None:
    page = opened(models=["BM25"])
    page.file_uploader[0].upload("bare.csv", b"query,document\nwhat melts,Ice melts.\n").run()
    assert not page.exception and not page.error
    assert any("evidence spans" in info.value for info in page.info)
