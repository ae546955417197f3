"""Playwright's `expect`, for pages that take seconds to draw.

As long as an element is missing, playwright's assertions describe the whole page at each of their
attempts, for a message that is only shown if the last one fails. This took a fifth of the CPU time
of a browser test. Here they are tried once the element is there, or can't be waited for any longer.
"""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, TimeoutError
from playwright.sync_api import expect as at_once

TIMEOUT_MS = 150_000
"""A model's first use takes ten seconds, a minute on a slow machine, and longer on a busy one. A
passing test doesn't wait this long."""
LAST_TRY_MS = 1
"""Time for the assertion that fails with a message, after waiting in vain."""
at_once.set_options(timeout=TIMEOUT_MS)


class _OfLocator:
    """Assertions on a locator; those that are not defined here are playwright's."""

    def __init__(self, locator: Locator, message: str | None) -> None:
        self._locator, self._given = locator, at_once(locator, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    def to_be_visible(self, timeout: float = TIMEOUT_MS) -> None:
        try:
            self._locator.wait_for(state="visible", timeout=timeout)
        except TimeoutError:
            self._given.to_be_visible(timeout=LAST_TRY_MS)

    def to_be_attached(self, timeout: float = TIMEOUT_MS) -> None:
        try:
            self._locator.wait_for(state="attached", timeout=timeout)
        except TimeoutError:
            self._given.to_be_attached(timeout=LAST_TRY_MS)

    def to_contain_text(self, text: Any, timeout: float = TIMEOUT_MS, **options: Any) -> None:
        self._given.to_contain_text(text, timeout=self._left(text, timeout), **options)

    def to_have_text(self, text: Any, timeout: float = TIMEOUT_MS, **options: Any) -> None:
        self._given.to_have_text(text, timeout=self._left(text, timeout), **options)

    def _left(self, text: Any, timeout: float) -> float:
        """Time left for a text once its element is there; a list has texts of several elements, of
        which there may be none."""
        try:
            if not isinstance(text, list):
                self._locator.wait_for(state="attached", timeout=timeout)
        except TimeoutError:
            return LAST_TRY_MS
        return timeout


class _OfPage:
    """Assertions on a page; those that are not defined here are playwright's."""

    def __init__(self, page: Page, message: str | None) -> None:
        self._page, self._given = page, at_once(page, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    def to_have_url(self, url: re.Pattern[str], timeout: float = TIMEOUT_MS) -> None:
        try:
            self._page.wait_for_url(url, wait_until="commit", timeout=timeout)
        except TimeoutError:
            self._given.to_have_url(url, timeout=LAST_TRY_MS)


def expect(actual: Any, message: str | None = None) -> Any:
    """Like playwright's, for a locator or a page."""
    return _OfPage(actual, message) if isinstance(actual, Page) else _OfLocator(actual, message)
