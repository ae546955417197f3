"""The command line: one JSON object on stdout, one sentence on stderr."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tqdm import tqdm
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.commands.command_output import silence_libraries
from poslens.dashboard.__main__ import app
from poslens.figures.captions import method_words
from poslens.names import resolve
from tests.support import tiny_models

runner = CliRunner()
KEYS = {
    "model",
    "method",
    "score",
    "query",
    "document",
    "query_scores",
    "document_scores",
    "matrix",
    "bias_share",
    "completeness_error",
    "positions",
    "magnitudes",
    "curve",
    "provenance",
    "standard_error",
}


LISTS = {
    "models": {
        "name",
        "title",
        "installed",
        "family",
        "hub_id",
        "pooling",
        "max_length",
        "configured_max_length",
        "size_mb",
        "license",
        "dequantized_bits",
    },
    "datasets": {"name", "title", "pairs", "rejected", "rejected_rows"},
    "methods": {"name", "title", "help", "caveat", "families", "parameters"},
}


def run(*arguments: str):
    return runner.invoke(app, list(arguments), catch_exceptions=False)


def test_explain_prints_one_object(tmp_path: Path) -> None:
    text = tmp_path / "document.txt"
    text.write_text("Stone stays. Ice melts in spring. 你好", encoding="utf-8")
    result = run(
        "explain",
        "--model",
        "MiniLM",
        "--method",
        "saliency",
        "--query",
        "what melts",
        "--document-file",
        str(text),
        "--format",
        "json",
    )
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found) == KEYS
    tokens = found["document"]["tokens"]
    assert set(tokens[0]) == {"text", "start", "end", "special"}
    assert len(found["document_scores"]) == len(tokens) and len(found["curve"]) == 100
    original = text.read_text(encoding="utf-8")
    assert [original[t["start"] : t["end"]].lower() for t in tokens if t["text"] == "ice"] == [
        "ice"
    ]
    assert found["document"]["truncated"] is False and found["matrix"] is None
    assert found["provenance"]["weights"] == "c006c9485a9bef2b"


def test_a_packaged_model_can_be_named_by_its_hub_id() -> None:
    texts = ("--query", "what melts", "--document", "Ice melts.")
    hub, preset = (
        json.loads(run("explain", *texts, "--model", name).stdout)
        for name in ("sentence-transformers/all-MiniLM-L6-v2", "MiniLM")
    )
    assert hub == preset


def test_decomposition_adds_up_and_has_a_matrix_on_request() -> None:
    result = run(
        "explain",
        "--method",
        "decomposition",
        "--option",
        "matrix=yes",
        "--query",
        "what melts",
        "--document",
        "Ice melts.",
    )
    found = json.loads(result.stdout)
    total = sum(found["document_scores"]) + found["bias_share"]
    assert total == pytest.approx(found["score"], abs=1e-5)
    assert len(found["matrix"]) == len(found["query"]["tokens"])
    assert len(found["matrix"][0]) == len(found["document"]["tokens"])


def test_explain_as_csv_has_a_row_per_token() -> None:
    result = run("explain", "--query", "ice", "--document", "Ice melts.", "--format", "csv")
    frame = pd.read_csv(io.StringIO(result.stdout))
    assert "Provenance: poslens" in result.stderr and "all-MiniLM-L6-v2" in result.stderr
    assert set(frame["side"]) == {"query", "document"}
    assert list(frame.loc[frame["side"] == "document", "token"])[1] == "ice"


def test_a_pair_of_a_data_set_gives_the_same_result_as_its_texts() -> None:
    pair = datasets.read("sample").pairs[0]
    of_set = json.loads(run("explain", "--dataset", "sample", "--pair", pair.pair_id).stdout)
    typed = run("explain", "--query", pair.query, "--document", pair.document)
    alone = json.loads(typed.stdout)["document_scores"]
    # Stored results are float32, and a batch of several texts rounds differently from one.
    assert of_set["document_scores"] == pytest.approx(alone, abs=1e-6)
    assert of_set["provenance"]["dataset"] == "sample"


def test_the_heatmap_is_written_as_html(tmp_path: Path) -> None:
    page = tmp_path / "pair.html"
    texts = ("--query", "what melts", "--document", "Ice melts.")
    assert run("explain", *texts, "--figure", str(page)).stderr.splitlines()[-1] == str(page)
    alone = page.read_text(encoding="utf-8")
    run("explain", *texts, "--model", "MiniLM", "--model", "MiniLM-recency", "--figure", str(page))
    both = page.read_text(encoding="utf-8")
    assert "Ice melts." in alone and "MiniLM-recency" not in alone and "MiniLM-recency" in both


def test_more_models_than_a_heatmap_shows_are_compared_in_numbers(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    names = ("bert", "bert-cls", "roberta", "distilbert", "modernbert")
    texts = ("--query", "what melts", "--document", "Ice melts.")
    models = (word for name in names for word in ("--model", str(tiny_folder(name))))
    asked = ("explain", "--table", "comparison", *texts, *models)
    assert [row["model"] for row in json.loads(run(*asked).stdout)["rows"]] == list(names)
    refused = run(*asked, "--figure", str(tmp_path / "five.html"))
    assert refused.exit_code == 2 and "A heatmap shows at most 4 models, not 5" in refused.stderr


def test_models_are_compared_on_one_pair() -> None:
    pair = datasets.read("sample").pairs[0]
    names = ("MiniLM-primacy", "MiniLM-recency")
    models = [word for name in names for word in ("--model", name)]
    asked = ["explain", "--table", "comparison", "--pair", pair.pair_id, *models]
    rows = json.loads(run(*asked).stdout)["rows"]
    assert [row["model"] for row in rows] == list(names)
    first, other = rows
    assert first["rank_correlation"] is None and first["score_difference"] is None
    for name, row in zip(names, rows, strict=True):
        alone = json.loads(run("explain", "--pair", pair.pair_id, "--model", name).stdout)
        assert row["score"] == alone["score"]
        first_third, last_third = (
            np.sum(alone["magnitudes"][p]) for p in (slice(33), slice(-33, None))
        )
        index = (last_third - first_third) / (last_third + first_third)
        assert row["primacy_recency_index"] == pytest.approx(index, abs=1e-6)
    assert other["score_difference"] == pytest.approx(other["score"] - first["score"])
    between = other["primacy_recency_index"] - first["primacy_recency_index"]
    assert other["index_difference"] == pytest.approx(between)
    assert -1 <= other["rank_correlation"] < 1 and 0 < other["curves_apart"] <= 1
    frame = pd.read_csv(io.StringIO(run(*asked, "--format", "csv").stdout))
    assert list(frame["score"]) == pytest.approx([row["score"] for row in rows])
    tokens = run("explain", "--pair", pair.pair_id, *models)
    lines = [json.loads(line) for line in tokens.stdout.splitlines()]
    assert [(line["model"], line["score"]) for line in lines] == [
        (row["model"], row["score"]) for row in rows
    ]


def test_positions_of_models_that_read_different_parts_are_not_compared(
    tiny_folder: Callable[..., Path],
) -> None:
    folders = {
        "short": tiny_folder("bert", tokenizer_limit=16),
        "as-short": tiny_folder("bert-cls", tokenizer_limit=16),
        "long": tiny_folder("bert"),
    }
    document = "Ice melts. " + "Stone stays where it is. " * 5
    models = (word for name in folders for word in ("--model", f"{name}={folders[name]}"))
    asked = ("explain", "--table", "comparison", "--query", "what melts", "--document", document)
    compared = run(*asked, *models)
    _, alike, other = json.loads(compared.stdout)["rows"]
    assert alike["tokens_read"] < alike["tokens"], "both truncate, at the same length"
    assert alike["index_difference"] is not None and alike["curves_apart"] is not None
    assert other["index_difference"] is None and other["curves_apart"] is None
    assert other["score_difference"] is not None and other["rank_correlation"] is not None
    assert "curves from short: long reads another part of the document" in compared.stderr


def test_a_table_of_tokens_states_the_score_of_the_pair_once(tmp_path: Path) -> None:
    texts = ("--query", "what melts", "--document", "Ice melts. Stone stays where it is.")
    file = tmp_path / "t.tex"
    assert run("explain", *texts, "--out", str(file)).exit_code == 0
    text = file.read_text()
    assert text.count("pair score") == 1 and "In every row, pair score: 0." in text
    both = ("--model", "MiniLM", "--model", "MiniLM-primacy")
    assert run("explain", *texts, *both, "--out", str(file)).exit_code == 0
    (stated,) = (line for line in file.read_text().splitlines() if "air score" in line)
    assert re.search(r"Pair score: 0\.\d{3} \(MiniLM\), 0\.\d{3} \(MiniLM-primacy\)\.", stated)


def test_a_model_equals_itself() -> None:
    texts = ("--query", "what melts", "--document", "Ice melts. Stone stays where it is.")
    models = ("--model", "MiniLM", "--model", "MiniLM-primacy@0")
    asked = run("explain", "--table", "comparison", *texts, *models)
    same = json.loads(asked.stdout)["rows"][1]
    assert same["rank_correlation"] == pytest.approx(1) and same["curves_apart"] == 0
    assert same["score_difference"] == same["index_difference"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain"], "Give either --query"),
        (["explain", "--pair", "nope"], "sample has no pair 'nope': use one of its pair ids"),
        (["explain", "--pair", "a", "--query", "x"], "either --pair or texts"),
        (["explain", "--query", "x", "--document", "y", "--figure", "x.gif"], "use .html"),
        (
            ["explain", "--query", "x", "--document", "y", "--table", "comparison"],
            "another --model",
        ),
        (["explain", "--query", " ", "--document", "x"], "The query is empty"),
        (["explain", "--query", "x", "--document", " \n"], "The document is empty"),
        (["explain", "--query", "x"], "The document is missing: give --document or"),
        (["explain", "--query", "x", "--document-file", "/dev/zero"], "has more than 2,000,000"),
        (["explain", "--query", "x", "--document-file", "/nonexistent"], "can't be read"),
        (["explain", "--query", "x", "--document", "y", "--model", "nope"], "There is no model"),
        (["rank", "--model", "./nope"], "./nope is not a folder: use the folder with the model's"),
        (["rank", "--model", "tests/nope"], "tests/nope is not a folder, although tests is one"),
        (["models", "fetch", "tests/support"], "tests/support is a folder, so there is nothing"),
        (["check", "--baseline", "nope"], "nope: No such file or directory: check the path."),
        (["why", "--query", " "], "Query is empty: enter a text, or leave it out."),
        (["why", "--query", "a b", "--queries", "2"], "`queries` has no effect next to `query`"),
        (["rank", "--model", __file__], "is not a folder: use the folder with the model's files."),
        (["explain", "--query", "x", "--document", "y", "--method", "nope"], "no method 'nope'"),
        (["explain", "--query", "x", "--document", "y", "--model", "mpnet"], "models fetch mpnet"),
        (
            ["explain", "--query", "x", "--document", "y", "--option", "a"],
            "--option must be NAME=VALUE",
        ),
        (["explain", "--query", "x", "--document", "y", "--resampling", "z"], "resampling can't"),
        (["precompute", "--dataset", "nope"], "no data set 'nope'"),
        (["precompute", "--workers", "2"], "need --executor ray"),
        (["precompute", "--shard", "2"], "--shard must be I/N"),
        (["precompute", "--shard", "3/2"], "no shard 3 of 2"),
        (["curve", "--dataset", "nope"], "no data set 'nope'"),
        (["curve", "--figure", "x.bmp"], "use .png"),
        (["curve", "--out", "x.svg"], "use .json, .csv, .parquet or .tex"),
        (["explain", "--out", "x.json", "--format", "csv"], "remove --format"),
        (["audit", "--out", "/nonexistent/x.json"], "/nonexistent/x.json cannot be written"),
        (["rank", "--figure", "/nonexistent/x.html"], "/nonexistent/x.html cannot be written"),
        (["audit", "--out", f"{__file__}/x.json"], "cannot be written (Not a directory)"),
        (["audit", "--out", "/proc/x.csv"], "/proc/x.csv cannot be written"),
        (["audit", "--figure", "/proc/x.svg"], "/proc/x.svg cannot be written"),
        (["debias", "--out", "/proc/x"], "/proc/x cannot be written"),
        (["curve", "--palette", "grey"], "add --figure"),
        (["datasets", "--out", "x.csv"], "use .txt or .json"),
        (["passport", "--model", "BM25", "--model", "nope"], "nope"),
        (["audit", "--model", "BM25", "--model", "nope"], "nope"),
        (["needles", "--model", "BM25", "--model", "nope"], "nope"),
        (["why", "--model", "BM25", "--query", "nope"], "has no query 'nope'"),
        (["models", "fetch", "nope"], "nope"),
        (["run", "--data", "nope"], "--data must be NAME=PATH, NAME=hf:"),
        (["run", "--model", "a=x"], "x is not a folder"),
        (["datasets", "--data", "a=x", "--data", "a=y"], "--data uses the name a twice"),
        (["run", "--run", "a=x", "--run", "a=y"], "--run uses the name a twice"),
        (["cause", "--intervention", "relocation", "--by", "mask"], "choose ablation"),
    ],
)
def test_invalid_input_gives_one_sentence_and_exit_code_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.stderr


def test_data_sets_are_listed_next_to_one_that_cannot_be_read(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.jsonl"
    good.write_text("query,document\ntide,The tide turns.\n")
    bad.write_text("{\n")
    given = [
        f"--data={name}={tmp_path / file}"
        for name, file in (("good", "good.csv"), ("bad", "bad.jsonl"), ("gone", "gone.csv"))
    ]
    result = run("datasets", *given, "--format", "json")
    assert result.exit_code == 2
    names = [row["name"] for row in json.loads(result.stdout)]
    assert "good" in names and "sample" in names and not {"bad", "gone"} & {*names}
    first, second = result.stderr.strip().splitlines()
    assert first.startswith("gone: ") and "is not a folder or a file" in first
    assert second.startswith("bad: ") and "no valid pair" in second
    assert "1 pair  " in run("datasets", given[0]).stdout


@pytest.mark.parametrize("option", ["--data=docs=texts.csv", "--dataset=./texts.csv"])
def test_a_result_cannot_overwrite_its_input_data(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "query,document\nwhen does fog lift,Fog lifts at noon.\n"
    Path("texts.csv").write_text(rows, encoding="utf-8")
    result = run("curve", "--model", "BM25", option, "--method", "terms", "--out", "texts.csv")
    assert result.exit_code == 2 and result.stdout == ""
    assert "texts.csv is also an input or another output" in result.stderr
    assert Path("texts.csv").read_text(encoding="utf-8") == rows


def test_a_figure_cannot_overwrite_the_result(tmp_path: Path) -> None:
    file = str(tmp_path / "x.json")
    result = run("curve", "--model", "MiniLM", "--out", file, "--figure", file)
    assert result.exit_code == 2 and "write to another file" in result.stderr


def test_a_folder_in_place_of_the_result_is_refused_before_the_computation(tmp_path: Path) -> None:
    folder = tmp_path / "x.csv"
    folder.mkdir()
    result = run("audit", "--model", "BM25", "--out", str(folder))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == f"{folder} cannot be written (Is a directory).\n"
    assert list(tmp_path.iterdir()) == [folder]  # nor is a provenance file left


def test_the_first_rejected_rows_are_listed(tmp_path: Path) -> None:
    rows = ["tide,The tide turns.,", *(f"tide,The tide turns.,missing {n}" for n in range(5))]
    (tmp_path / "own.csv").write_text("query,document,evidence\n" + "\n".join(rows))
    done = run("precompute", "--dataset", str(tmp_path / "own.csv"))
    first, *listed, last = done.stderr.splitlines()[:5]
    assert first == "5 rows were rejected:"
    assert last == "  and 2 more, listed by `poslens datasets --data NAME=PATH --format json`"
    assert [line.split(":")[0] for line in listed] == [f"  own.csv row {n}" for n in (3, 4, 5)]


def test_a_folder_gives_curve_and_figure(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "corpus" / "eng" / "ice"
    (folder / "qrels").mkdir(parents=True)
    query = {
        "_id": "q",
        "text": "what melts",
        "pos_char_span": [0, 10],
        "pos_char_length": 20,
        "pos_token_length": 6,
    }
    pq.write_table(pa.Table.from_pylist([query]), folder / "queries.parquet")
    corpus = [{"_id": "d", "text": "Ice melts. Stone stays."}]
    pq.write_table(pa.Table.from_pylist(corpus), folder / "corpus.parquet")
    qrels = [{"query-id": "q", "corpus-id": c, "score": 1} for c in ("d", "gone")]
    pq.write_table(pa.Table.from_pylist(qrels), folder / "qrels" / "test.parquet")
    root = str(tmp_path / "corpus")
    done = run("precompute", "--dataset", root)
    assert json.loads(done.stdout)["computed"] == 1
    assert "1 row was rejected" in done.stderr
    assert json.loads(run("precompute", "--dataset", root).stdout)["computed"] == 0
    curve = run("curve", "--dataset", root, "--resampling", "point")
    assert "MiniLM: the primacy-recency index is" in curve.stderr
    frame = pd.read_csv(io.StringIO(curve.stdout))
    assert len(frame) == 100 and set(frame["n"]) == {1}
    target = tmp_path / "curve.html"
    names = ("MiniLM", "sentence-transformers/all-MiniLM-L6-v2")
    asked = ("--model", names[0], "--model", names[1], "--dataset", root)
    table = tmp_path / "curve.csv"
    saved = run("curve", "--out", str(table), *asked)
    assert saved.stdout.splitlines() == [str(table)], "scripts take the path from here"
    assert len(pd.read_csv(table)) == 100, "one model by two names"
    beside = tmp_path / "curve.provenance.json"
    assert str(beside) in saved.stderr
    (entry,) = json.loads(beside.read_text(encoding="utf-8"))
    assert entry["model"] == "MiniLM" and "resampling=bin_mean" in entry["method"]
    written = run("curve", "--figure", str(target), *asked)
    assert written.exit_code == 0 and "resampling=bin_mean" in target.read_text(encoding="utf-8")


def test_curve_computes_missing_results_of_the_requested_pairs(tmp_path: Path) -> None:
    rows = [
        f"what is {word},{word} is old. It is {word}." for word in ("ice", "fog", "rust", "tide")
    ]
    (tmp_path / "few.csv").write_text("\n".join(["query,document", *rows]))
    arguments = ("--model", "BM25", "--method", "terms", "--data", f"few={tmp_path / 'few.csv'}")
    two = run("curve", *arguments, "--pairs", "2", "--format", "json")
    (entry,) = json.loads(two.stdout)["provenance"]
    assert (
        entry["n_pairs"] == 2 and entry["selection"] == "2 pairs, spread evenly over the data set"
    )
    done = json.loads(run("precompute", *arguments).stdout)
    assert (done["total"], done["computed"]) == (4, 2)
    every = run("curve", *arguments, "--axis", "text", "--format", "json")
    assert "selection" not in json.loads(every.stdout)["provenance"][0]
    # A curve over the text has no index, because models read different parts of it.
    assert "primacy-recency index is" in two.stderr
    assert "primacy-recency index is" not in every.stderr and "has no primacy" not in every.stderr


def test_items_that_fail_are_counted_with_the_first_reason(tmp_path: Path) -> None:
    rows = [
        "what is ice,Ice is old. It is cold.,Ice is old.",
        "what is fog,Fog is old.,Fog is old.",
    ]
    (tmp_path / "two.csv").write_text("\n".join(["query,document,evidence", *rows]))
    done = run("cause", "--model", "BM25", "--dataset", str(tmp_path / "two.csv"))
    assert done.exit_code == 0
    assert "BM25, relocation: 1 item failed. The first reason: The document is one" in done.stderr
    assert "ablation: 1 item failed" not in done.stderr


def test_curve_states_why_every_pair_failed(tmp_path: Path) -> None:
    """Documents alone have no queries, which saliency needs."""
    (tmp_path / "docs.jsonl").write_text('{"text": "Ice melts."}\n{"text": "Fog rises."}\n')
    done = run("curve", "--data", f"docs={tmp_path / 'docs.jsonl'}")
    assert done.exit_code == 2
    assert "No pair has a result: Gradient saliency needs a query" in done.stderr
    assert run("curve", "--data", f"docs={tmp_path / 'docs.jsonl'}").exit_code == 2
    again = run("precompute", "--data", f"docs={tmp_path / 'docs.jsonl'}", "--retry-failed")
    assert "2 pairs failed. The first reason: Gradient saliency needs a query" in again.stderr


def test_curve_prints_the_models_that_the_method_fits(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("query,document\nwhat is ice,Ice is cold here.\n")
    arguments = ("--method", "terms", "--data", f"one={tmp_path / 'one.csv'}", "--table", "summary")
    done = run("curve", "--model", "MiniLM", "--model", "BM25", *arguments)
    assert done.exit_code == 2 and "terms is unavailable for MiniLM" in done.stderr
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert row["model"] == "BM25" and row["pairs"] == "1"
    assert run("curve", "--model", "MiniLM", *arguments).stdout == ""
    failures = (*arguments[:-1], "failures", "--format", "json")
    done = run("curve", "--model", "MiniLM", "--model", "BM25", *failures)
    (row,) = json.loads(done.stdout)["rows"]
    assert done.exit_code == 0 and (row["model"], row["item"]) == ("MiniLM", None)


def test_bars_of_a_library_that_is_already_imported_are_turned_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """huggingface_hub reads its variable only when it is imported."""
    calls: list[None] = []
    bars = import_module("huggingface_hub.utils.tqdm")
    monkeypatch.setattr(bars, "disable_progress_bars", lambda: calls.append(None))
    silence_libraries()
    assert calls


def test_progress_bars_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TQDM_DISABLE=1 does, which tqdm reads when it is imported."""
    (tmp_path / "one.csv").write_text("query,document\nwhat is ice,Ice is old.\n")
    monkeypatch.setattr("tqdm.tqdm", partial(tqdm, disable=True))
    arguments = ("--model", "BM25", "--method", "terms", "--data", f"one={tmp_path / 'one.csv'}")
    done = run("precompute", *arguments)
    assert done.exit_code == 0 and json.loads(done.stdout)["computed"] == 1
    assert "pair/s" not in done.stderr


def test_two_folders_of_the_same_name_are_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, place in enumerate("ab"):
        built = tiny_models.build("bert", tmp_path / f"built-{place}", seed=i)
        shutil.copytree(built, tmp_path / place / "checkpoint-500")
    monkeypatch.chdir(tmp_path)
    paths = ["a/checkpoint-500", "b/checkpoint-500"]
    texts = ("--query", "what melts", "--document", "Ice melts. Stone stays.")
    models = ("--model", paths[0], "--model", paths[1])
    done = run("explain", "--table", "comparison", *models, *texts)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["model"] for row in rows] == ["checkpoint-500", "b/checkpoint-500"]
    assert rows[0]["score"] != rows[1]["score"]
    assert [resolve(path).name for path in paths] == [row["model"] for row in rows], "again"
    place = f"folder:{(tmp_path / paths[1]).resolve()}"
    assert resolve(f"{paths[1]}@cls").source == place
    monkeypatch.chdir(tmp_path / "b")
    assert resolve("checkpoint-500").source == place, "the folder that is here"


def test_failures_are_listed_and_retried_on_demand(tmp_path: Path) -> None:
    data = tmp_path / "two.jsonl"
    rows = [
        {"pair_id": "good", "query": "what melts", "document": "Ice melts."},
        {"pair_id": "bad", "query": "\u200b", "document": "Ice melts."},
    ]
    data.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    done = json.loads(run("precompute", "--dataset", str(data)).stdout)
    assert (done["total"], done["done"], done["computed"], done["failed"]) == (2, 2, 2, 1)
    asked = ("curve", "--dataset", str(data), "--table", "failures", "--format", "json")
    (failed,) = json.loads(run(*asked).stdout)["rows"]
    assert failed["item"] == "bad" and "reads no word" in failed["reason"]
    assert json.loads(run("precompute", "--dataset", str(data)).stdout)["computed"] == 0
    again = run("precompute", "--dataset", str(data), "--retry-failed")
    assert json.loads(again.stdout)["computed"] == 1


def test_failures_are_listed_without_any_result(tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    sentences = "Ice melts. Snow falls. Fog rises."
    rows = [
        {"pair_id": f"p{n}", "query": "\u200b", "document": f"{sentences} {n}", "evidence": "Ice"}
        for n in range(3)
    ]
    data.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    asked = ("--model", "BM25", "--dataset", str(data), "--table", "failures", "--format", "json")
    terms = method_words("terms")
    computed = {
        "cause": {"relocation", "ablation"},
        "faithfulness": {terms, "words by position"},
        "agreement": {terms, "relocation", "ablation"},
        "curve": {terms},
    }
    for command in computed:
        more = ("--method", "terms") if command in ("agreement", "curve") else ()
        done = run(command, *asked, *more)
        assert done.exit_code == 0, done.stderr
        listed = json.loads(done.stdout)
        assert {row["item"].split(" ")[0] for row in listed["rows"]} == {"p0", "p1", "p2"}
        assert all("reads no word" in row["reason"] for row in listed["rows"])
        assert listed["provenance"][0]["model"] == "BM25"
        methods = {method_words(entry["method"]) for entry in listed["provenance"]}
        assert methods == computed[command]
    assert "reads no word of the query" in run("agreement", *asked, "--method", "terms").stderr
    # No attribution fails where no query retrieves two documents.
    (row,) = json.loads(run("simulatability", *asked).stdout)["rows"]
    assert row["item"] is None and "retrieve two documents" in row["reason"]


def test_models_data_sets_and_methods_are_listed() -> None:
    assert "MiniLM-recency" in run("models").stdout
    assert "304 pairs" in run("datasets").stdout
    assert "bin_mean" in run("methods").stdout


def test_the_progress_of_a_study_names_no_unit(tmp_path: Path) -> None:
    """Its stages count different things: documents read, then pairs or queries."""
    own = tmp_path / "pairs.csv"
    own.write_text("query,document\n" + "".join(f"is {n},It is {n}.\n" for n in range(5)))
    for command, unit in (("rank", "query"), ("hubs --top 1", "document"), ("why", "pair")):
        bar = run(*command.split(), "--model", "BM25", "--dataset", str(own)).stderr
        assert re.search(r"\d+/\d+ \[.*(\dit/s|s/it|\?it/s)", bar), command
        assert f"{unit}/s" not in bar and f"s/{unit}" not in bar


def test_lists_have_aligned_columns() -> None:
    lines = run("models").stdout.splitlines()
    column = lines[0].index("installed")
    for line in lines:
        assert line[column:].startswith(("installed  ", "to fetch   ")) and line[column - 1] == " "
    assert not any(" MB " in line for line in lines if line.startswith("BM25"))
    lines = run("datasets").stdout.splitlines()
    assert len({line.index(" rejected") for line in lines}) == 1


def test_lists_as_json_equal_the_printed_lines() -> None:
    found = {name: json.loads(run(name, "--format", "json").stdout) for name in LISTS}
    for name, rows in found.items():
        assert all(set(row) == LISTS[name] for row in rows)
        lines = [line for line in run(name).stdout.splitlines() if not line.startswith(" ")]
        assert [row["name"] for row in rows] == [line.split()[0].rstrip(":") for line in lines]
    (sample,) = (row for row in found["datasets"] if row["name"] == "sample")
    assert (sample["pairs"], sample["rejected"]) == (304, 0)
    (minilm,) = (row for row in found["models"] if row["name"] == "MiniLM")
    assert minilm["installed"] is True and minilm["max_length"] == 512
    assert minilm["configured_max_length"] == 256
    (line,) = (one for one in run("models").stdout.splitlines() if one.startswith("MiniLM "))
    assert line.endswith("reads 512 tokens (its own configuration: 256)")
    (saliency,) = (row for row in found["methods"] if row["name"] == "saliency")
    assert saliency["parameters"]["resampling"] == ["bin_mean", "point"]


@pytest.mark.parametrize("arguments", [("explain", "--format", "xml"), ("why", "--table", "xml")])
def test_the_error_of_an_invalid_choice_names_the_choices(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(arguments))
    words = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[1]}': 'xml' is not one of '" in words
