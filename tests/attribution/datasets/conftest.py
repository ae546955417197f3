"""Fixtures for tests of several formats."""

from __future__ import annotations

from typing import Any

import pytest

from poslens.attribution.datasets import parquet


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that would be checked in a child process, whose start would take most of the
    time."""
    names: list[str] = []

    def record(files: Any) -> None:
        names.extend(file.name for file, _ in files)

    monkeypatch.setattr(parquet, "require_readable", record)
    return names
