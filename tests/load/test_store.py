"""A small run of tests/load/store.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_concurrent_writers_and_readers_lose_nothing() -> None:
    # Run as a command at the repository's root, so that its processes can import it by name.
    command = [sys.executable, "-m", "tests.load.store"]
    options = ["--writers", "2", "--readers", "2", "--operations", "800"]
    ran = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "lost=0, torn=0, doubled=0" in ran.stdout
