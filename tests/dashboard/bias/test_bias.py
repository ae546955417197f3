"""Bias tests: runs and tables, the chart, the page and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.evaluation.bias_pairs import BiasPairs, pairs_for
from poslens.attribution.evaluation.bias_tests import COLDER_TESTS, TESTS
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute, service
from poslens.compute.runs import Run
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import PRESETS, Style, text_width
from poslens.studies.bias.study import BIAS_STUDY, provenance_of
from poslens.studies.bias.tables import MEASURES, BiasSummary, ScoredTest, bias_chart
from poslens.studies.explain.minus import contrast_note, contrasted, fitting
from poslens.studies.explain.tables import explained_frame
from poslens.study import Asked
from tests.support.pages import SECONDS, page_file

PAGE = page_file("cause")


pytestmark = pytest.mark.usefixtures("own_service")


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compute]:
    yield Compute(tmp_path_factory.mktemp("bias"))


@pytest.fixture(scope="module")
def tests() -> tuple[BiasPairs, ...]:
    return BIAS_STUDY.corpus(datasets.read("sample-bias"), BIAS_STUDY.parameters.settings())


def bm25() -> RetrieverSpec:
    return with_corpus(resolve("BM25"), "sample-bias")


@pytest.fixture(scope="module")
def results(
    compute: Compute, tests: tuple[BiasPairs, ...], one_thread: None
) -> dict[str, BiasSummary]:
    found = {}
    for spec in (resolve("MiniLM-primacy"), resolve("MiniLM-recency"), bm25()):
        run = BIAS_STUDY.job(compute, Asked(spec, tests, BIAS_STUDY.parameters.settings())).start()
        run.wait()
        assert not run.error and run.progress.done == 84
        found[spec.name] = summary_of(compute, spec, tests)
    return found


def summary_of(compute: Compute, spec: RetrieverSpec, tests: tuple[BiasPairs, ...]) -> BiasSummary:
    summary = BIAS_STUDY.summarize(compute, Asked(spec, tests, BIAS_STUDY.parameters.settings()))
    assert summary is not None
    return summary


def of(summary: BiasSummary, test: str) -> ScoredTest:
    found = summary.of(test)
    assert found is not None
    return found


def run_of(spec: RetrieverSpec, dataset: str = "sample-bias", **chosen: Any) -> Run:
    """The run that the page started."""
    corpus = BIAS_STUDY.corpus(datasets.read(dataset), BIAS_STUDY.parameters.settings(chosen))
    run = BIAS_STUDY.job(service(), Asked(spec, corpus, BIAS_STUDY.parameters.settings())).run
    assert run is not None
    return run


def test_a_planted_bias_has_the_right_sign_and_bm25_has_none(results) -> None:
    t = {name: of(found, "position").result.t for name, found in results.items()}
    assert t["MiniLM-primacy"] > 5 and t["MiniLM-recency"] < -5
    flat = of(results["BM25"], "position")
    assert t["BM25"] is None and flat.result.difference == 0
    alone = replace(results["BM25"], tests=(flat,))
    assert BIAS_STUDY.remarks([alone]) == [
        "BM25, position: d1 and d2 score the same in every pair: the model ignores the difference."
    ]
    assert (of(results["BM25"], "literal").result.t or 0) > 5


def test_a_verdict_without_a_difference_claims_no_significance(results) -> None:
    alone = replace(results["BM25"], tests=(of(results["BM25"], "position"),))
    assert BIAS_STUDY.verdict(alone) == "BM25: no difference in position."
    (tested,) = alone.tests
    without_pairs = replace(
        tested, result=replace(tested.result, n=0, difference=None, low=None, high=None, p=None)
    )
    nothing = replace(alone, tests=(without_pairs,))
    assert BIAS_STUDY.verdict(nothing) == "BM25: not tested: position."
    (both,) = BIAS_STUDY.together([results["BM25"]])
    verdict = BIAS_STUDY.verdict(both)
    assert "d1 scores higher in " in verdict and "no significant difference in " in verdict
    assert "; s(d1) − s(d2) with 95% interval); no difference in " in verdict


def test_the_table_has_holm_adjusted_p(results) -> None:
    found = BIAS_STUDY.together(list(results.values()))
    frame = BIAS_STUDY.tables["tests"].frame(found)
    assert len(frame) == 21 and frame["p_holm"].isna().sum() == 1
    known = frame.dropna(subset=["p"])
    assert (known["p_holm"] >= known["p"]).all()
    assert known["p"].min() * 20 == pytest.approx(known["p_holm"].min())
    assert (frame["mean_difference_low"] <= frame["mean_difference"]).all()
    assert "accuracy" not in frame, "which order it counted depended on the test"
    position = frame[(frame["model"] == "MiniLM-primacy") & (frame["test"] == "position")].iloc[0]
    assert (position["d1_preferred"], position["resistance"]) == (1, 0)
    assert position["mteb_prefers"] == "d2"
    important = frame[frame["test"] == "answer_importance"]
    assert (important["d1_preferred"] == important["resistance"]).all()
    one = of(found[0], "poison")
    pairs = BIAS_STUDY.tables["pairs"].frame(found[:1])
    assert len(pairs) == 84
    pairs = pairs[pairs["test"] == "poison"]
    assert len(pairs) == 12 and pairs["difference"].is_monotonic_decreasing
    assert pairs["difference"].mean() == pytest.approx(one.result.difference)
    made = provenance_of(found[0].model, [one])
    assert (made.n_pairs, made.dataset) == (12, "sample-bias") and "bias_scores" in made.method


def test_models_are_compared_test_by_test(results: dict[str, BiasSummary]) -> None:
    names = ("MiniLM-primacy", "MiniLM-recency")
    summaries = [results[name] for name in names]
    frame = BIAS_STUDY.all_tables["differences"].frame(summaries).set_index("measure")
    row = frame.loc["position (d1 − d2, standard deviations)"]
    assert (row["model"], row["against"], row["difference_verdict"]) == (*names[::-1], "lower")
    for summary, value in zip(summaries, (row["other_value"], row["value"]), strict=True):
        test = of(summary, "position")
        scores = [(one.first, one.second) for one in test.scores.values()]
        assert value == pytest.approx((test.result.difference or 0) / np.std(scores))
    assert len(frame) == 7 and (frame["units"] == "pairs").all()


def test_identical_documents_are_excluded_and_counted(compute: Compute) -> None:
    pairs = pairs_for(datasets.read("sample"), "position", "own")
    same = [pair for pair in pairs.pairs if pair.identical]
    others = [pair for pair in pairs.pairs if not pair.identical][:2]
    some = BiasPairs("position", (*same[:3], *others), pairs.source)
    spec = with_corpus(resolve("BM25"), "sample")
    BIAS_STUDY.job(compute, Asked(spec, (some,), BIAS_STUDY.parameters.settings())).start().wait()
    (found,) = summary_of(compute, spec, (some,)).tests
    assert (found.result.n, found.result.n_identical, found.missing) == (2, 3, 0)
    assert found.result.remarks[0] == "3 pairs with identical documents excluded."


@pytest.mark.parametrize("method", ["decomposition", "saliency"])
def test_a_contrast_is_drawn_with_both_signs(compute: Compute, tests, method: str) -> None:
    pair = tests[1].pairs[0]
    spec, how = resolve("MiniLM-recency"), make_method(method)
    results = [compute.explain(one, spec, how) for one in (pair.first, pair.second)]
    found = contrasted(*results)
    first, second = found.shown()
    assert (first.attribution.model, second.attribution.model) == ("d1", "d2")
    drawn = second.attribution.document_scores
    if method == "saliency":
        assert found.contrast is None and "don't sum to the score" in found.reason
        assert (drawn == found.second.attribution.document_scores).all()
        assert not any(one.units for one in found.provenance())
        return
    parts = found.contrast
    assert parts is not None and (drawn == -found.second.attribution.document_scores).all()
    total = float(first.attribution.document_scores.sum() + drawn.sum())
    assert total + parts.bias == pytest.approx(parts.difference, abs=1e-3)
    assert f"{parts.difference:+.4f}" in contrast_note(parts)
    # Files state the document of each row, and that rows of d2 have the opposite sign.
    made = [(one.selection[-2:], one.units) for one in found.provenance()]
    assert made == [("/1", ""), ("/2", "shares negated, for s(d1) − s(d2)")]
    frame = explained_frame([first, second], "document")
    assert frame["document"].unique().tolist() == ["d1", "d2"]
    assert frame["model"].unique().tolist() == ["MiniLM-recency"]
    assert fitting(compute, resolve("MiniLM"))[0] == "decomposition"
    assert fitting(compute, bm25())[0] == "terms"


@pytest.mark.parametrize("measure", MEASURES)
def test_the_chart_contains_every_result(results, measure: str) -> None:
    settings = BIAS_STUDY.parameters.settings({"measure": measure})
    shown = [replace(one, asked=replace(one.asked, settings=settings)) for one in results.values()]
    figure = BIAS_STUDY.draw(shown, Style())
    narrow = BIAS_STUDY.draw(shown, PRESETS["single column"])
    assert narrow.layout.xaxis.tickfont.size >= PRESETS["single column"].small, "6.75 pt"
    assert len(figure.layout.meta["provenance"]) == 3
    assert [trace.name for trace in figure.data] == list(results)
    for trace, (name, group) in zip(figure.data, results.items(), strict=True):
        assert [list(custom) for custom in trace.customdata] == [
            [name, test] for test in COLDER_TESTS
        ]
        for height, up, one in zip(trace.y, trace.error_y.array, group.tests, strict=True):
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


def test_the_labels_fit_or_turn(results) -> None:
    style = PRESETS["double column"]
    axis = bias_chart([results["MiniLM-primacy"]], style).layout.xaxis
    room = (style.width_px - 6 * style.font_size) / len(COLDER_TESTS)
    lines = [line for label in axis.categoryarray for line in label.split("<br>")]
    assert all(text_width(line, axis.tickfont.size) <= room for line in lines)
    assert axis.autotickangles == (0, 90), "in a single column, they turn"
    titles = [TESTS[name].title for name in COLDER_TESTS]
    assert [label.replace("<br>", " ") for label in axis.categoryarray] == titles
    assert len(set(axis.categoryarray)) == len(COLDER_TESTS)
    assert axis.autotickangles == (0, 90), "lines of neighbors would overlap at 45 degrees"


def test_incomplete_tests_are_reported_without_a_result(results) -> None:
    one = results["BM25"]
    assert any("ignores" in sentence for sentence in BIAS_STUDY.remarks([one]))
    partial = replace(one, tests=(replace(of(one, "position"), missing=1),))
    assert BIAS_STUDY.remarks([partial]) == [
        "Some tests are computed for only part of their pairs."
    ]


def test_names_from_data_are_escaped_in_the_chart(results) -> None:
    one = results["BM25"]
    spec = replace(one.model.spec, name="<b>x</b>")
    figure = bias_chart([replace(one, model=replace(one.model, spec=spec))], Style())
    assert "<b>" not in figure.data[0].name and "<b>" not in figure.data[0].hovertext[0]


# -- the page ----------------------------------------------------------------------------------


def opened(**query: object) -> AppTest:
    page = AppTest.from_file(str(PAGE), default_timeout=SECONDS)
    page.query_params["tab"] = "Bias tests"
    for name, value in query.items():
        page.query_params[name] = value  # type: ignore[assignment]
    return page.run()


def test_the_page_runs_and_shows_its_results(tests) -> None:
    page = opened(models=["BM25"])
    assert not page.exception and not page.error
    assert any("Press Compute" in info.value for info in page.info)
    page.button(key="bias.start").click().run()
    run_of(bm25()).wait()
    page = opened(models=["BM25"], test="brevity", item="brevity_bias/iss")
    assert not page.exception and not page.error
    chart = json.loads(page.get("plotly_chart")[0].proto.spec)
    assert [trace["name"] for trace in chart["data"]] == ["BM25"]
    table = page.dataframe[0].value
    assert list(table["test"]) == [TESTS[name].title for name in COLDER_TESTS]
    assert (table["n"] == 12).all()
    assert any("ignores the difference" in warning.value for warning in page.warning)
    assert len(page.dataframe[1].value) == 12
    assert any("in one color range" in caption.value for caption in page.caption)
    assert {metric.label for metric in page.metric} == {"s(d1)", "s(d2)", "s(d1) − s(d2)"}
    listed = page.selectbox(key="test")
    assert listed.options == [TESTS[name].title for name in COLDER_TESTS]
    assert listed.value == "brevity"
    listed.set_value("literal").run()
    assert page.query_params["test"] == "literal"


def test_a_data_set_with_spans_offers_the_tests_that_need_only_spans() -> None:
    page = opened(models=["BM25"], dataset="sample", pairs="5", tests=["position"])
    assert not page.exception and not page.error
    tests, names = page.multiselect(key="tests"), ("position", "brevity", "necessity")
    assert tests.options == [TESTS[name].title for name in names]
    assert tests.value == ["position"], "the address has names, the list titles"
    tests.set_value(["brevity", "necessity"]).run()
    assert page.query_params["tests"] == ["brevity", "necessity"]
    tests.set_value(["position"]).run()
    assert page.segmented_control(key="position").value == "end"
    page.button(key="bias.start").click().run()
    spec = with_corpus(resolve("BM25"), "sample")
    run_of(spec, "sample", tests=["position"], pairs=5).wait()
    page = opened(models=["BM25"], dataset="sample", pairs="5", tests=["position"])
    assert page.dataframe[0].value["n"].tolist() == [5]
    page = opened(models=["BM25"], dataset="sample", pairs="5")
    assert any(
        r"Not tested here\: answer importance, literal match" in caption.value
        for caption in page.caption
    )


def test_a_missing_model_is_reported_once_and_the_others_run() -> None:
    page = opened(models=["BM25", "no-such-model"], tests=["literal", "brevity"])
    assert not page.exception and len(page.error) == 1
    page.button(key="bias.start").click().run()
    run_of(bm25(), tests=["literal", "brevity"]).wait()
    page = opened(models=["BM25", "no-such-model"], tests=["literal", "brevity"])
    assert not page.exception and set(page.dataframe[0].value["model"]) == {"BM25"}


def test_fewer_than_ten_pairs_are_shown_with_a_warning() -> None:
    tests = (pairs_for(datasets.read("sample-bias"), "literal", limit=5),)
    BIAS_STUDY.job(service(), Asked(bm25(), tests, BIAS_STUDY.parameters.settings())).start().wait()
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
    assert "ignores the difference" in done.stderr
    twice = command("--model", "BM25", "--model", "BM25", "--test", "position", "--test", "foil")
    assert json.loads(twice.stdout)["rows"] == found["rows"], "p is adjusted for two tests"
    again = command("--model", "BM25", "--test", "position", "--format", "csv")
    assert again.stdout.splitlines()[-1].startswith('"BM25","position","Position","",12,12,""')


def test_the_command_tests_each_variant(tmp_path: Path) -> None:
    figure = tmp_path / "variants.json"
    done = command("--model", "BM25", "--vary", "literal", "--figure", str(figure))
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["test"], row["variant"]) for row in rows] == [
        ("literal", "short name"),
        ("literal", "long name"),
    ]
    assert sum(row["n"] for row in rows) == 11
    assert "1 pair left out. Both names are equally long." in done.stderr
    (trace,) = json.loads(figure.read_text())["data"]
    assert trace["x"] == ["short name", "long name"]
    both = command("--model", "BM25", "--vary", "literal", "--test", "foil")
    assert both.exit_code == 2 and "foil do not include literal" in both.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dataset", "sample", "--test", "foil"], "evidence spans don't mark the entity"),
        (["--test", "x"], "Tests: choose from answer_importance"),
        (["--position", "x"], "Evidence moves to: choose from end, middle, own, not 'x'."),
        (["--dataset", "nothing"], "no data set 'nothing'"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(arguments: list[str], sentence: str) -> None:
    done = command("--model", "BM25", *arguments)
    assert done.exit_code == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


def test_a_data_set_without_spans_has_no_bias_test(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n")
    done = command("--model", "BM25", "--dataset", str(own))
    assert done.exit_code == 2 and "no bias test for it" in done.stderr


def test_a_data_set_of_identical_documents_is_refused(tmp_path: Path) -> None:
    row = {"query": "q", "document_1": "Ice melts.", "document_2": "Ice melts."}
    (tmp_path / "brevity_bias.jsonl").write_text(json.dumps(row) + "\n")
    done = command("--model", "BM25", "--dataset", str(tmp_path))
    assert done.exit_code == 2
    assert "Brevity: both documents of every pair are identical" in done.stderr


def test_a_test_without_different_documents_does_not_affect_the_others(tmp_path: Path) -> None:
    same = {"query": "q", "document_1": "Ice melts.", "document_2": "Ice melts."}
    (tmp_path / "brevity_bias.jsonl").write_text(json.dumps(same) + "\n")
    rows = (
        {"query": f"melts {n}", "document_1": f"Ice melts {n}.", "document_2": f"Snow melts {n}."}
        for n in range(3)
    )
    (tmp_path / "literal_bias.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command("--model", "BM25", "--dataset", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert [row["test"] for row in json.loads(done.stdout)["rows"]] == ["literal"]
    assert "Brevity: no two documents differ" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", b"query,document\n", "has no rows"),
        ("empty.csv", b"query,document\n,x\n", "has 1 row, but no valid pair"),
        ("nothing.jsonl", b"", "has no rows"),
    ],
)
def test_an_empty_upload_is_refused_and_the_page_stays(
    name: str, content: bytes, message: str
) -> None:
    page = opened(models=["BM25"])
    page.file_uploader[0].upload(name, content).run()
    assert not page.exception
    (error,) = page.error
    assert message in error.value.replace("\\", "")
    assert any("Press Compute" in info.value for info in page.info), "the former data set stays"


def test_an_upload_without_evidence_states_what_tests_need() -> None:
    page = opened(models=["BM25"])
    page.file_uploader[0].upload("bare.csv", b"query,document\nwhat melts,Ice melts.\n").run()
    assert not page.exception
    assert any("evidence spans" in error.value for error in page.error)


def test_tests_that_leave_out_the_same_pairs_share_a_note() -> None:
    data = datasets.read("sample")
    settings = BIAS_STUDY.parameters.settings()
    notes = BIAS_STUDY.notes(data, BIAS_STUDY.corpus(data, settings))
    (note,) = [note for note in notes if "Thai" in note]
    assert note.startswith("Position, Brevity, Span necessity: 8 pairs left out.")
