"""axe-core on every page as a first visit shows it, in both themes: nothing serious or worse, and
headings in order; every chart in words; no page wider than a narrow window."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import App, Visit, idle, press
from tests.e2e.test_navigation import PAGES

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
GRAVE = ("serious", "critical")
HEADINGS = "heading-order"
FULL = ".hm-pane[data-side=document], .js-plotly-plot, [data-testid=stDataFrame]"
NAMELESS = "[data-testid=stPlotlyChart]:not([role=figure][aria-label*=' '])"
ADDRESSES = [
    *PAGES.values(),
    "curves?models=MiniLM&method=occlusion",  # with a button in the primary colour
]


def violations(page: Page) -> list[str]:
    """What axe-core finds that is serious, critical or a heading out of order: a line for each
    element."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{rule['id']}: {node['target']} {node['html'][:200]}"
        for rule in found
        if rule["impact"] in GRAVE or rule["id"] == HEADINGS
        for node in rule["nodes"]
    ]


def paint(page: Page, theme: Literal["light", "dark"]) -> None:
    """Have the page drawn in a theme, as the system's setting has it."""
    page.emulate_media(color_scheme=theme)
    page.wait_for_function(
        """(dark) => {
             const app = document.querySelector("[data-testid=stApp]");
             const [red] = (app ? getComputedStyle(app).backgroundColor : "").match(/\\d+/) ?? [];
             return red !== undefined && (red < 128) === dark;
           }""",
        arg=theme == "dark",
    )
    idle(page)


def lasting_violations(page: Page, seconds: float = 20) -> list[str]:
    """Violations that are still there after this time: text that fades in or changes its colors
    has too little contrast for a moment."""
    end = time.monotonic() + seconds
    while (remaining := violations(page)) and time.monotonic() < end:
        page.wait_for_timeout(500)
    return remaining


@pytest.mark.parametrize("path", ADDRESSES)
def test_everybody_can_use_the_page(shipped_app: App, go: Visit, path: str) -> None:
    page = go(f"{shipped_app.url}/{path}")
    page.set_viewport_size({"width": 1440, "height": 1000})
    shown = page.locator(FULL).or_(page.get_by_role("button", name="Compute"))
    for theme in ("light", "dark"):
        paint(page, theme)
        expect(shown.filter(visible=True).first).to_be_visible()
        idle(page)
        assert lasting_violations(page) == []
        expect(page.locator(NAMELESS).filter(visible=True)).to_have_count(0)
    for width in (800, 390):
        page.set_viewport_size({"width": width, "height": 1000})
        expect(shown.filter(visible=True).first).to_be_visible()
        # The page's own scrolling is that of its main part, and not the document's. A table takes
        # the window's new width some frames after the rest.
        page.wait_for_function(
            """() => [document.scrollingElement, document.querySelector("[data-testid=stMain]")]
                 .every((node) => node.scrollWidth <= Math.min(node.clientWidth, innerWidth))"""
        )
    if path == "storage":
        press(page.get_by_text("Import", exact=True), page.locator("pre").first.is_visible)
        assert violations(page) == []
