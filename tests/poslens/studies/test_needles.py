"""Needles: cells computed once, tables, heatmap, the Python call, and invalid input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import poslens
from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.needle import NeedleCell, NeedleGrid
from poslens.cache.kinds.study_items import CellItem, needle_cells
from poslens.cache.storage.store import ModelKey
from poslens.dashboard.__main__ import app
from poslens.export.latex import latex
from poslens.paired import DifferenceRow, difference_sentences
from poslens.rows import frame_of, shown
from poslens.studies import needles as needle_study


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "mine.jsonl"
    rows = [
        {"query": f"q{d}", "document": " ".join(f"Line {n} of {d} is dull." for n in range(40))}
        for d in range(5)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["needles", *arguments], catch_exceptions=False)


class Letters:
    """A model without a tokenizer: vectors that count letters."""

    def encode(self, texts: list[str]) -> np.ndarray:
        """One dimension per letter."""
        return np.array([[1.0 + text.count(chr(97 + n)) for n in range(26)] for text in texts])


def test_the_figure_names_the_unit_of_lengths(corpus: str) -> None:
    asked = {"needles": 2, "depths": (0, 100), "lengths": (64,)}
    of_words = poslens.needles({"own": Letters()}, corpus, **asked)
    figure = of_words.figure()
    assert figure.layout.yaxis.title.text == "Text length (words)"
    assert figure.layout.yaxis.ticktext == ("own · 64",)
    assert figure.data[0].customdata[0][0].startswith("own · 64 words, depth 0%: ")
    both = poslens.needles({"own": Letters(), "BM25": "BM25"}, corpus, **asked).figure()
    assert both.layout.yaxis.title.text == "Text length"
    assert both.layout.yaxis.ticktext == ("own · 64 words", "BM25 · 64 tokens")


def test_cells_are_computed_once_and_printed(
    corpus: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = ("--model", "BM25", "--dataset", corpus, "--needles", "12", "--depths", "0,50,100")
    found = json.loads(run(*asked, "--lengths", "64,128").stdout)
    assert [(row["length"], row["depth"]) for row in found["rows"]] == [
        (length, depth) for length in (64, 128) for depth in (0, 50, 100)
    ]
    for row in found["rows"]:
        assert row["accuracy"] == 1 and row["needles"] == 12 and row["tokens"] == row["length"]
        assert row["accuracy_low"] < 1 and row["by_chance"] == pytest.approx(1 / 12)
    (provenance,) = found["provenance"]
    assert "needle(needles=12, seed=0" in provenance["method"]
    assert provenance["selection"] == (
        "needles hidden in texts made from 5 documents, of 64 and 128 tokens, at depths of 0, 50 "
        "and 100%"
    )
    monkeypatch.setattr(needle_study, "cell", lambda *_: pytest.fail("a cell was computed again"))
    summary = json.loads(run(*asked, "--lengths", "64,128", "--table", "summary").stdout)["rows"]
    assert [row["length"] for row in summary] == [64, 128, None]
    table = tmp_path / "summary.tex"
    run(*asked, "--lengths", "64,128", "--table", "summary", "--out", str(table))
    rows = [line for line in table.read_text().splitlines() if line.endswith(r" \\")]
    assert [row.split(" & ")[0] for row in rows] == ["length", "64", "128", "all"]
    assert summary[-1]["cells"] == 6 and summary[-1]["last_minus_first"] == 0
    result = poslens.needles("BM25", corpus, needles=12, depths=(0, 50, 100), lengths=(64, 128))
    (*_, shown) = result.study.tables["summary"].text_frame(result.summaries).to_dict("records")
    assert shown["length"] == "all"
    assert shown["accuracy"] == "100.0% [71.8%, 100.0%]", "pages show shares in percent"
    assert shown["last minus first"] == "+0.0 [+0.0, +0.0] points"
    assert shown["by chance"] == pytest.approx(100 / 12)
    (cells,) = result.figure().data
    assert cells.zmax == 100 and set(cells.z[0]) == {100} and set(cells.text[0]) == {"100"}
    file = tmp_path / "grid.json"
    beside = run(*asked, "--lengths", "64,128", "--figure", str(file))
    assert json.loads(beside.stdout) == found and str(file) in beside.stderr
    drawn = json.loads(file.read_text())
    assert drawn["layout"]["meta"]["figure"] == "needle_grid"
    assert drawn["data"][0]["z"] == [[100.0] * 3] * 2
    assert drawn["layout"]["yaxis"]["ticktext"] == ["BM25 · 64", "BM25 · 128"]


def test_lengths_beyond_the_context_limit_are_left_out(
    corpus: str, tiny_folder: Callable[..., Path]
) -> None:
    folder = str(tiny_folder("bert"))
    asked = ("--model", folder, "--corpus", corpus, "--needles", "3", "--depths", "0")
    found = run(*asked, "--lengths", "64,100000")
    assert "Texts of 100,000 tokens exceed its context limit." in found.stderr
    assert [row["length"] for row in json.loads(found.stdout)["rows"]] == [64]
    (summary, _) = json.loads(run(*asked, "--lengths", "64", "--table", "summary").stdout)["rows"]
    assert summary["limit"] == 128, "as the folder's configuration says"
    none = run(*asked, "--lengths", "100000")
    assert none.exit_code == 2 and "is below all lengths of texts, from " in none.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lengths", "64,x"), "must be whole numbers from 64 to 1,000,000, separated by commas"),
        (("--lengths", "64.5"), "must be whole numbers from 64 to 1,000,000, separated by commas"),
        (("--lengths", "inf"), "must be whole numbers from 64 to 1,000,000, separated by commas"),
        (("--depths", "0,200"), "must be numbers from 0 to 100, separated by commas"),
        (("--depths", ","), "must be numbers from 0 to 100, separated by commas"),
        (("--needles", "1"), "must be a whole number from 2 to 100"),
        (("--corpus", "nowhere"), "There is no data set"),
        (("--figure", "x.txt"), "doesn't have a supported suffix"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(options: tuple[str, ...], message: str) -> None:
    found = run("--model", "BM25", *options)
    assert found.exit_code == 2 and message in found.stderr
    assert "\n" not in found.stderr.strip()


def test_a_cell_is_read_back_and_has_a_rank_for_each_needle(tmp_path: Path) -> None:
    cells, key = needle_cells(tmp_path), ModelKey("m", "0" * 16)
    item = CellItem("x", 64, 12.5, "c")
    method = needle_study.needle_method(2, 0)
    cells.put(key, method, [(item, NeedleCell((1, 2), (60, 61), 1))])
    assert cells.get(key, method, item) == NeedleCell((1, 2), (60, 61), 1)
    with pytest.raises(ValueError, match="no ranks"):
        NeedleCell((1, 3), (60, 61), 1)


def test_the_python_call_gives_the_same_numbers_as_the_command(corpus: str, tmp_path: Path) -> None:
    asked = ("--model", "BM25", "--dataset", corpus, "--needles", "3", "--depths", "0,100")
    printed = json.loads(run(*asked, "--lengths", "64", "--table", "summary").stdout)["rows"]
    found = poslens.needles("BM25", corpus, lengths="64", depths=[0, 100], needles=3)
    frame = found.to_frame("summary")
    assert frame["length"].tolist() == [64, pd.NA]
    assert frame["accuracy"].tolist() == [row["accuracy"] for row in printed]
    (verdict,) = found.verdicts
    assert verdict.startswith("BM25 ranks the needle's text first of ")
    assert "Too few needles to decide: an interval needs 10." in verdict
    assert found.save(tmp_path / "x.csv").is_file() and "BM25" in found._repr_html_()
    with pytest.raises(UserError, match="no table 'x': choose from cells, summary"):
        found.to_frame("x")
    with pytest.raises(UserError, match="no parameter 'length': choose from lengths"):
        poslens.needles("BM25", corpus, length="64")


def test_two_models_are_compared_on_common_cells() -> None:
    study = needle_study.NEEDLE_STUDY
    depths = (0.0, 50.0, 100.0)

    def summary(name: str, cells: dict[tuple[int, float], list[int]]) -> Any:
        grid = NeedleGrid(
            (64, 128), depths, {at: NeedleCell(tuple(r), (64,) * 12, 0) for at, r in cells.items()}
        )
        return SimpleNamespace(name=name, grid=grid)

    retrieved, missed = [1] * 12, [3] * 12
    half = [1, 3] * 6
    even = summary("even", {(64, depth): retrieved for depth in depths} | {(128, 0.0): missed})
    early = summary("early", {(64, 0.0): retrieved, (64, 50.0): half, (64, 100.0): missed})
    accuracy, slope = study.differences([even, early])
    assert (accuracy.model, accuracy.against, accuracy.difference.difference.n) == (
        "early",
        "even",
        36,
    )
    assert (accuracy.value, accuracy.other_value) == (0.5, 1.0)
    assert (slope.value, slope.other_value) == (-1.0, 0.0)
    of_share, of_change = map(shown, [accuracy, slope])
    assert (of_share["value"], of_share["value of the other"]) == ("50.0%", "100.0%")
    assert (of_change["value"], of_change["value of the other"]) == (
        "-100.0 points",
        "+0.0 points",
    ), "differences of shares are in percentage points"
    frame = frame_of(DifferenceRow, [accuracy, slope])
    entry = {"model": "early", "dataset": "d", "method": "m"}
    assert "$-$100.0 points & +0.0 points" in latex(frame, [entry], "t").decode()
    assert slope.difference.difference.n == 24, "the middle depth is in neither third"
    assert accuracy.difference.difference.n_resampled == 12
    assert accuracy.difference.verdict == slope.difference.verdict == "lower"


@pytest.mark.parametrize("n", [4, 12])
def test_sentences_name_needles_and_how_many_would_decide(n: int) -> None:
    study = needle_study.NEEDLE_STUDY
    depths = (0.0, 100.0)

    def summary(name: str, last: list[int]) -> Any:
        cells = {(64, 0.0): [1, 3] * (n // 2), (64, 100.0): last}
        grid = NeedleGrid(
            (64,), depths, {at: NeedleCell(tuple(r), (64,) * n, 0) for at, r in cells.items()}
        )
        return SimpleNamespace(name=name, grid=grid, asked=SimpleNamespace(unread=()))

    rank = [1, 3, 3, 1] * (n // 4)
    one, two = summary("one", rank), summary("two", rank[1:] + rank[:1])
    sentences = [study.verdict(one), *difference_sentences(study.differences([one, two]))]
    assert re.search(r"too few needles, about [\d,]+ needed", sentences[1])
    for sentence in sentences:
        assert "needles" in sentence and "documents" not in sentence
    if n >= MIN_DOCUMENTS:
        assert re.search(r"Too few needles to decide; about [\d,]+ needles would", sentences[0])
