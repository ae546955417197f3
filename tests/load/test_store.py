"""A small run of tests/load/store.py."""

from __future__ import annotations

from pathlib import Path

from tests.load.store import load


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    outcome = load(tmp_path, writers=2, readers=2, operations=800)
    assert (outcome.lost, outcome.torn, outcome.doubled) == (0, 0, 0), outcome
