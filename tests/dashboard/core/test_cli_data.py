"""Data sets given on the command line, by path, by name and from the hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attribution import datasets
from dashboard.__main__ import app


@pytest.fixture(autouse=True)
def unchanged_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_folders", dict(datasets._folders))
    monkeypatch.setattr(datasets, "_variants", dict(datasets._variants))


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_datasets_counts_what_is_given(tmp_path: Path) -> None:
    own = tmp_path / "pairs.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n,x\n")
    row = {"query": "q", "document_1": "a", "document_2": "b"}
    (tmp_path / "foil.jsonl").write_text(json.dumps(row) + "\n")
    done = run("datasets", "--data", f"mine={own}", "--data", f"c={tmp_path / 'foil.jsonl'}")
    assert done.exit_code == 0
    listed = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert listed["mine"][1:5] == ["1", "pairs", "1", "rejected"]
    assert listed["c"][1:5] == ["2", "pairs", "0", "rejected"] and listed["c"][-1] == "(ColDeR)"


def test_a_file_is_a_data_set_by_its_path(tmp_path: Path) -> None:
    own = tmp_path / "pairs.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n,x\n")
    done = run("precompute", "--dataset", str(own))
    found = json.loads(done.stdout)
    assert (found["dataset"], found["done"]) == ("pairs.csv", 1)
    assert "pairs.csv row 3: The query is empty" in done.stderr


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mine", "NAME=PATH, NAME=hf:ORGANISATION/NAME, NAME=ir_datasets:ID"),
        ("mine=", "NAME=PATH"),
        ("=x", "NAME=PATH"),
        ("mine=/nonexistent", "is not a folder or a file"),
        ("mine=hf:BeIR/scifact", "The hub cannot be reached"),
        ("mine=hf:x", "is not hf:"),
        ("mine=hf:BeIR/scifact@eng-pol", "The hub cannot be reached for BeIR/scifact:"),
    ],
)
@pytest.mark.parametrize("command", ["datasets", "run"])
def test_a_wrong_data_option_is_one_sentence(command: str, value: str, message: str) -> None:
    done = run(command, "--data", value)
    assert done.exit_code == 2 and message in done.stderr
    assert done.stderr.count("\n") == 1
