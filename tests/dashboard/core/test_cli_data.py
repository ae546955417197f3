"""Data sets given on the command line, by path, by name and from the hub."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.dashboard.__main__ import app
from poslens.names import data_name


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_datasets_counts_the_given_data(tmp_path: Path) -> None:
    own = tmp_path / "pairs.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n,x\n")
    row = {"query": "q", "document_1": "a", "document_2": "b"}
    (tmp_path / "foil.jsonl").write_text(json.dumps(row) + "\n")
    done = run("datasets", "--data", f"mine={own}", "--data", f"c={tmp_path / 'foil.jsonl'}")
    assert done.exit_code == 0
    listed = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert listed["mine"][1:5] == ["1", "pair", "1", "rejected"]
    assert listed["c"][1:5] == ["2", "pairs", "0", "rejected"] and listed["c"][-1] == "(ColDeR)"
    entries = json.loads(run("datasets", "--data", f"mine={own}", "--format", "json").stdout)
    (mine,) = (entry for entry in entries if entry["name"] == "mine")
    (rejected,) = mine["rejected_rows"]
    assert (rejected["file"], rejected["row"]) == ("pairs.csv", 3) and rejected["reason"]


def test_a_name_given_with_data_takes_precedence_over_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    own = tmp_path / "pairs.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n")
    monkeypatch.chdir(tmp_path)
    for dataset in ([], ["--dataset", "docs"]):
        done = run("rank", "--model", "BM25", "--data", "docs=pairs.csv", *dataset)
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["provenance"][0]["dataset"] == "docs"
    refused = run("rank", "--model", "BM25", "--dataset", "./docs")
    assert refused.exit_code == 2 and "docs is not in a known format" in refused.stderr


def test_a_data_set_can_be_named_by_its_path(tmp_path: Path) -> None:
    own = tmp_path / "pairs.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n,x\n")
    done = run("precompute", "--dataset", str(own))
    found = json.loads(done.stdout)
    assert (found["dataset"], found["done"]) == ("pairs.csv", 1)
    assert "pairs.csv row 3: The query is empty" in done.stderr


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: str, n: int) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        rows = "".join(f"what is {i},It is {i}.\n" for i in range(n))
        (tmp_path / folder / "own.csv").write_text("query,document\n" + rows)

    def count(source: str) -> int:
        return len(datasets.read(data_name(source)).pairs)

    write("here", 2)
    monkeypatch.chdir(tmp_path / "here")
    assert count("own.csv") == 2
    write("here", 3)
    assert count("own.csv") == count("./own.csv") == 3, "the file has changed"
    sample, own = datasets.read("sample"), datasets.read(data_name("own.csv"))
    assert datasets.read(data_name(str(Path("own.csv").resolve()))) is own, "read once"
    assert datasets.read(data_name("sample")) is sample
    write("there", 5)
    monkeypatch.chdir(tmp_path / "there")
    assert count("own.csv") == 5, "another folder's file of this name"
    monkeypatch.chdir(tmp_path)
    assert count("own.csv") == 5, "a known name, where there is no such path"
    write("there", 6)
    assert count("own.csv") == 6
    (tmp_path / "sample").mkdir()
    assert datasets.read(data_name("sample")).title == sample.title, "names that ship come first"
    write("folder", 2)
    assert count("folder") == 2
    write("folder", 4)
    assert count("folder") == 4, "a file within a folder has changed"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mine", "NAME=PATH, NAME=hf:ORGANIZATION/NAME, NAME=ir_datasets:ID"),
        ("mine=", "NAME=PATH"),
        ("=x", "NAME=PATH"),
        ("mine=/nonexistent", "is not a folder or a file"),
        ("mine=hf:BeIR/scifact", "The hub can't be reached"),
        ("mine=hf:x", "is not hf:"),
        ("mine=hf:BeIR/scifact@eng-pol", "The hub can't be reached to download BeIR/scifact:"),
    ],
)
@pytest.mark.parametrize("command", ["datasets", "run"])
def test_an_invalid_data_option_is_refused_in_one_sentence(
    command: str, value: str, message: str
) -> None:
    done = run(command, "--data", value)
    assert done.exit_code == 2 and message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_start_states_what_each_data_set_supports(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("query,document\nwhat melts,Ice melts.\n")
    data = [each for name in "ab" for each in ("--data", f"{name}={tmp_path / name}.csv")]
    with socket.socket() as taken:  # so that the dashboard does not start
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("run", *data, "--port", str(taken.getsockname()[1]))
    assert done.exit_code == 2
    for name in "ab":
        assert f"{name} has 1 pair of a query and a document, but no evidence." in done.stderr
