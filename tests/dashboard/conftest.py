"""Settings of the server process, which tests of pages change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poslens.dashboard.server import access, opening
from poslens.dashboard.server.access import Access
from poslens.dashboard.server.opening import Opening


@pytest.fixture(autouse=True)
def default_server() -> Iterator[None]:
    """After each test, restrict the server to this machine and let pages open with their default
    data."""
    yield
    access.current = Access()
    opening.current = Opening()
