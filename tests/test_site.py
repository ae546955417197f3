"""The docs as a site: it builds, its links work, and it loads nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

import poslens
from bench.picture import ADDRESSES, THEMES
from tests.support.chromium import chromium

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
MAX_PICTURE_BYTES = 150_000


@dataclass
class Read(HTMLParser):
    """A page of the site: its anchors, its links, and what a browser loads with it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        for name in ("href", "src", "srcset"):
            if name in named:
                (self.links if tag == "a" else self.loaded).append(named[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by `make docs`, without network access."""
    out = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(["http_proxy", "https_proxy"], "http://127.0.0.1:9")
    built = ["build", "--strict", "--quiet", "-f", "tools/site/mkdocs.yml", "-d", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *built],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Read]:
    """Every page of the site except the 404 page, which is shown at any address."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            found[path] = Read()
            found[path].feed(path.read_text(encoding="utf-8"))
    return found


def broken(pages: dict[Path, Read]) -> Iterator[str]:
    """Broken links within the site."""
    for path, read in pages.items():
        for link in [*read.links, *read.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{path.name}: {link}"
            elif parts.fragment and target in pages:
                # Material's own anchors start with two underscores and are for its scripts.
                anchor = unquote(parts.fragment)
                if not anchor.startswith("__") and anchor not in pages[target].anchors:
                    yield f"{path.name}: {link}"


def test_every_link_leads_somewhere(pages: dict[Path, Read]) -> None:
    assert len(pages) > 25 and sum(len(read.links) for read in pages.values()) > 1000
    assert list(broken(pages)) == []


def test_the_link_check_detects_a_broken_link(pages: dict[Path, Read], site: Path) -> None:
    here = site / "tour.html"
    for link in ("gone.html", "methods.html#gone", "#gone", "pictures/gone.webp"):
        assert list(broken({**pages, here: replace(pages[here], links=[link])})) == [
            f"tour.html: {link}"
        ]


def test_pages_load_nothing_from_other_sites(pages: dict[Path, Read], site: Path) -> None:
    loaded = {link for read in pages.values() for link in read.loaded}
    assert [link for link in loaded if urlsplit(link).netloc] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\W*(https?:)?//", sheet.read_text("utf-8")), sheet
    # The theme's script loads a library if a page has a diagram.
    assert not any('class="mermaid"' in path.read_text("utf-8") for path in pages)


def test_the_reference_has_every_public_name(pages: dict[Path, Read], site: Path) -> None:
    reference = pages[site / "reference" / "poslens.html"].anchors
    others = pages[site / "reference" / "attribution.html"].anchors
    elsewhere = {"UserError", "__version__"}
    assert {f"poslens.{name}" for name in {*poslens.__all__} - elsewhere} <= reference
    assert "poslens.attribution.errors.UserError" in others


def test_formulas_are_mathml(site: Path) -> None:
    text = (site / "methods.html").read_text("utf-8")
    assert text.count("<math ") > 50 and 'display="block"' in text
    for page in site.rglob("*.html"):
        left_over = re.findall(r'class="arithmatex">.*', page.read_text("utf-8"))
        assert left_over == [], page


def test_tables_fit_their_column_on_a_laptop(site: Path) -> None:
    """No table scrolls sideways at 1,440 px. The check detects one that does."""
    wider = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')]
        .filter(wrap => wrap.scrollWidth > wrap.clientWidth + 1)
        .map(wrap => wrap.innerText.slice(0, 80))"""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for path in sorted(site.glob("*.html")):
            page.goto(path.as_uri())
            if page.locator(".md-typeset table").count():
                page.wait_for_selector(".md-typeset__scrollwrap", timeout=60_000)
            assert page.evaluate(wider) == [], path.name
        page.goto((site / "methods.html").as_uri())
        page.wait_for_selector(".md-typeset__scrollwrap", timeout=60_000)
        page.add_style_tag(content=".md-typeset table th { min-width: 30rem !important }")
        assert page.evaluate(wider) != []
        browser.close()


def test_the_home_page_is_the_readme_with_its_picture(pages: dict[Path, Read], site: Path) -> None:
    first = pages[site / "index.html"]
    assert {"pictures/explain-light.webp", "pictures/explain-dark.webp"} <= set(first.loaded)
    assert "tour.html" in first.links


def test_the_tour_shows_every_page_in_both_themes(pages: dict[Path, Read], site: Path) -> None:
    app = (ROOT / "dashboard" / "app.py").read_text(encoding="utf-8")
    assert set(re.findall(r'url_path="(\w+)"', app)) == set(ADDRESSES)
    names = {f"{name}-{theme}.webp" for name in ADDRESSES for theme in THEMES}
    assert {path.name for path in PICTURES.iterdir()} == names
    assert {f"pictures/{name}" for name in names} <= set(pages[site / "tour.html"].loaded)
    for name in names:
        assert 5_000 < (PICTURES / name).stat().st_size < MAX_PICTURE_BYTES, name
