"""A sample of the failing calls of tests/crash/faults.py."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.crash.faults import ROOT, missing, preloaded


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_failing_calls_lose_nothing_and_are_reported_in_one_sentence(tmp_path: Path) -> None:
    command, environment = preloaded(["--every", "110"], tmp_path)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"(\d+) calls, (\d+) failed, (\d+) sentences", done.stdout)
    calls, failed, sentences = (sum(int(line[k]) for line in lines) for k in range(3))
    assert len(lines) == 15 and calls > 1000 and failed > 12 and sentences > 8, done.stdout
