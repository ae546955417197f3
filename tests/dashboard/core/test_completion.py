"""Shell completion, requested like a shell does, and the option --quiet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import presets
from poslens.commands import completion
from poslens.dashboard.__main__ import app
from tools.docs import commands, every_command

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "pandas", "streamlit", "plotly")
# The program as started by its entry point; prints on stderr which heavy libraries it loaded.
PROGRAM = f"""
import sys
sys.argv = ["poslens"]
from poslens.dashboard.__main__ import main
try:
    main()
finally:
    print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


def completed(line: str) -> list[str]:
    """Bash completions of a line that ends with the word at the cursor."""
    words = line.split(" ")
    asked = {
        "_POSLENS_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **asked},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr.strip() == "", "a heavy library was loaded, or something went wrong"
    return done.stdout.split()


def test_the_shell_completes_names() -> None:
    assert completed("poslens expl") == ["explain"]
    assert "MiniLM-primacy" in completed("poslens curve --model Mini")
    assert completed("poslens explain --method integrated_g") == ["integrated_gradients"]
    assert "sample-bias" in completed("poslens curve --dataset sam")


def test_completion_lists_the_same_names_as_the_program() -> None:
    assert completion.method_names("") and set(completion.method_names("")) == set(METHODS)
    assert completion.model_names("") == list(presets())
    assert completion.dataset_names("") == list(datasets.names())
    assert completion.model_names("MiniLM@la") == ["MiniLM@last"]
    assert completion.model_names("BM25@") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="poslens")
    assert shown.exit_code == 0 and "_POSLENS_COMPLETE" in shown.stdout


def test_every_command_but_the_server_accepts_quiet() -> None:
    whole = every_command()
    without = {
        name
        for name, command in commands(whole)
        if not any("--quiet" in one.opts for one in command.params)
    }
    assert without == {"run"}


def test_quiet_keeps_the_result_and_errors(tmp_path: Path) -> None:
    data = tmp_path / "two.jsonl"
    rows = [{"query": "what melts", "document": "Ice melts."}, {"query": "", "document": "x"}]
    data.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    loud = CliRunner().invoke(app, ["precompute", "--dataset", str(data)])
    assert "1 row was rejected" in loud.stderr and "MiniLM" in loud.stderr
    still = CliRunner().invoke(app, ["precompute", "--dataset", str(data), "--quiet"])
    assert still.exit_code == 0 and still.stderr == "" and json.loads(still.stdout)["done"] == 1
    wrong = CliRunner().invoke(app, ["precompute", "--dataset", "nope", "--quiet"])
    assert wrong.exit_code == 2 and wrong.stdout == "" and "no data set 'nope'" in wrong.stderr
    asked = CliRunner().invoke(app, ["cache", "delete", "--quiet"])
    assert asked.exit_code == 2 and "add --yes" in asked.stderr
