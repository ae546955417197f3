"""What tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from poslens.attribution import datasets
from poslens.attribution.retrievers import resolve
from poslens.compute.compute import service


@pytest.fixture
def own_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Pages compute in a folder of this test's, and what it registers ends with it."""
    for module, name in ((datasets, "_folders"), (datasets, "_variants"), (resolve, "_registered")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    service.cache_clear()
    yield
    service.cache_clear()
