"""Where the pages' files are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "dashboard"
_FOLDERS = {"cause": "interventions", "cache": "cache_page"}


def page_file(name: str) -> Path:
    """The file of a page by the name that its address has."""
    return DASHBOARD / _FOLDERS.get(name, name) / "page.py"


def page_files() -> dict[str, Path]:
    """Every page's file by its folder's name."""
    return {path.parent.name: path for path in sorted(DASHBOARD.glob("*/page.py"))}
