"""The first of the damaged files of tests/fuzz/readers.py, in a process of their own: a damaged
Parquet file can end it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.readers import READERS, fuzz

ROOT = Path(__file__).parents[2]
# As many as some five seconds of a processor read; `python -m tests.fuzz.readers` reads more.
USUAL = 1500
SLOW = {
    "parquet": 150,
    "beir": 150,
    "posir": 60,
    "multiclaim": 75,
    "squad": 150,
    "fineweb-posq": 150,
    "documents": 50,
    "traces": 300,
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_end_in_data_or_in_one_sentence(name: str, tmp_path: Path) -> None:
    said = tmp_path / "under way"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz.readers",
            "--only",
            name,
            "--mutations",
            str(SLOW.get(name, USUAL)),
            "--said",
            str(said),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=limited,
    )
    assert done.returncode in (0, 1), f"ended by signal {-done.returncode} at {said.read_text()}"
    assert done.returncode == 0, done.stdout


def test_the_fuzz_sees_what_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "csv", lambda draw, folder: 1 / 0)  # type: ignore[arg-type]
    with monkeypatch.context() as kept:
        from attribution import isolated

        for owner, attribute in (
            (isolated, "call"),
            (isolated.Reader, "call"),
            (isolated.Reader, "_start"),
        ):
            kept.setattr(owner, attribute, getattr(owner, attribute))
        (problem,) = fuzz("csv", 1)
    assert "csv 0" in problem and "ZeroDivisionError" in problem
