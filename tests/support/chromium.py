"""The browser of tests."""

from __future__ import annotations

import shutil

import pytest


def chromium() -> str:
    """The system's Chromium, without the parts that draw a window where there is such a one;
    playwright's own download is not used."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    return found
