"""Every command takes the shared options, and they mean the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from typer.testing import CliRunner

from tools.docs import commands, every_command

COMMANDS = dict(commands(every_command()))
ABOUT_FILES = {"methods", "models fetch"}
ANALYSES = sorted(
    name
    for name in set(COMMANDS) - ABOUT_FILES - {"run", "models", "datasets"}
    if not name.startswith("cache ")
)
STORED = ("passport", "--model", "BM25", "--stored")
OPTIONS = {
    name: {word for one in command.params for word in one.opts}
    for name, command in COMMANDS.items()
}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.csv"
    file.write_text("query,document\nwhat melts,Ice melts. Snow too.\nwhat flows,Water flows.\n")
    return file


def run(*words: object) -> Any:
    from poslens.dashboard.__main__ import app

    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_accepts_models_endpoints_and_data(name: str) -> None:
    assert {"--model", "--endpoint", "--dataset", "--data"} <= OPTIONS[name]


@pytest.mark.parametrize("name", ["run", "models"])
def test_other_commands_accept_models_and_endpoints(name: str) -> None:
    assert {"--model", "--endpoint"} <= OPTIONS[name]


@pytest.mark.parametrize("name", ["run", "datasets"])
def test_other_commands_accept_data(name: str) -> None:
    assert "--data" in OPTIONS[name]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_has_models_as_positional_arguments(name: str) -> None:
    arguments = {one.name for one in COMMANDS[name].params if one.param_type_name == "argument"}
    assert not arguments & {"model", "models"}


NEEDED = {
    "explain": ("--query", "x", "--document", "y"),
    "check": ("--baseline", "nowhere.json"),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_a_missing_data_path_is_refused_before_anything_is_computed(
    name: str, tmp_path: Path
) -> None:
    words = (*name.split(), *NEEDED.get(name, ()))
    done = run(*words, "--data", f"mine={tmp_path / 'nowhere'}")
    assert done.exit_code == 2 and "nowhere is not a folder or a file" in done.stderr


@pytest.mark.parametrize("name", ANALYSES)
def test_a_missing_model_folder_is_refused_before_anything_is_computed(
    name: str, tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*name.split(), *NEEDED.get(name, ()))
    more = () if name == "bias" else ("--data", f"mine={pairs}")
    done = run(*words, "--model", f"own={tmp_path / 'nowhere'}", *more)
    assert done.exit_code == 2 and "nowhere is not a folder" in done.stderr, done.stderr


def test_the_only_given_data_set_is_the_default(pairs: Path) -> None:
    done = run(*STORED, "--data", f"mine={pairs}")
    assert json.loads(done.stdout)[0]["dataset"] == "mine", done.stderr
    asked = (*STORED, "--dataset", "sample")
    assert json.loads(run(*asked, "--data", f"mine={pairs}").stdout)[0]["dataset"] == "sample"


def test_one_of_several_data_sets_must_be_chosen(pairs: Path) -> None:
    several = ("--data", f"mine={pairs}", "--data", f"other={pairs}")
    refused = run(*STORED, *several)
    assert refused.exit_code == 2 and "mine and other: select one with --dataset" in refused.stderr
    chosen = run(*STORED, *several, "--dataset", "other")
    assert json.loads(chosen.stdout)[0]["dataset"] == "other"


def test_a_folder_is_named_as_given(tiny_folder: Callable[..., Path], pairs: Path) -> None:
    folder = tiny_folder("bert")
    done = run("precompute", "--model", f"own={folder}@mean", "--data", f"mine={pairs}")
    assert (json.loads(done.stdout)["model"], json.loads(done.stdout)["done"]) == ("own@mean", 2)
    listed = run("models", "--model", f"own={folder}", "--format", "json")
    assert [one["name"] for one in json.loads(listed.stdout)] == ["own"]


def test_a_name_cannot_be_used_for_two_models(
    tiny_folder: Callable[..., Path], tmp_path: Path, pairs: Path
) -> None:
    folder = tiny_folder("bert")
    other = copytree(folder, tmp_path / "other")
    two = ("--model", f"own={folder}", "--model", f"own={other}")
    refused = run("rank", *two, "--data", f"mine={pairs}")
    assert "--model uses the name own for two folders: rename one." in refused.stderr
    taken = run("rank", "--model", f"MiniLM={folder}", "--data", f"mine={pairs}")
    assert "MiniLM is already the name of another model" in taken.stderr
