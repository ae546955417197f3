"""What tests of several formats share."""

from __future__ import annotations

from typing import Any

import pytest

from poslens.attribution.datasets import parquet


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that were to be checked in a child, whose start would take most of the tests' time."""
    names: list[str] = []

    def record(files: Any) -> None:
        names.extend(file.name for file, _ in files)

    monkeypatch.setattr(parquet, "require_readable", record)
    return names
