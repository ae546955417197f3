"""Chromium for benchmarks of pages. Needs Playwright, which only the tests install."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )


def new_page(browser: Browser) -> Page:
    """An empty page in a browser context of its own, which has loaded nothing before."""
    return browser.new_page(viewport={"width": 1440, "height": 1000})


def open_page(page: Page, url: str, shown: str, *, minutes: float = 2) -> Page:
    """Open a URL and wait for the first element `shown` (a CSS selector)."""
    page.goto(url)
    page.locator(shown).filter(visible=True).first.wait_for(timeout=60_000 * minutes)
    return page
