"""What the docs say of the code is what the code says of itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dashboard.core.settings import SETTINGS
from tools import cli_docs

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_page_of_commands_is_made_of_the_commands() -> None:
    assert cli_docs.PAGE.read_text(encoding="utf-8") == cli_docs.page(), (
        "run python -m tools.cli_docs"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_names_of_files_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith(("http", "mailto:")):
            assert (page.parent / target).exists(), target
    for named in re.findall(
        r"`((?:attribution|cache|dashboard|bench|tools|tests)/[\w/.-]+)`", text
    ):
        assert (ROOT / named).exists(), named


def test_every_setting_is_described() -> None:
    described = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [s.name for s in SETTINGS if f"`{s.name}`" not in described] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
