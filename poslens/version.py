"""The version of PosLens."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    __version__ = version("poslens")
except PackageNotFoundError:  # a checkout
    _PROJECT = Path(__file__).parents[1] / "pyproject.toml"
    __version__ = str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])
