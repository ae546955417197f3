"""`expect` waits as playwright's does, and fails with its messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.e2e.waiting import expect


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """An empty page, where a paragraph can be added with a delay."""
    page = context.new_page()
    page.goto("about:blank")
    page.evaluate(
        """() => window.later = () => setTimeout(() => {
          document.body.innerHTML = "<p>tide and moon</p>";
          location.hash = "drawn";
        }, 300)"""
    )
    yield page
    page.close()


ASSERTIONS: dict[str, Callable[[Page, float], None]] = {
    "be visible": lambda page, ms: expect(page.get_by_text("tide")).to_be_visible(timeout=ms),
    "be attached": lambda page, ms: expect(page.locator("p")).to_be_attached(timeout=ms),
    "contain text 'moon'": lambda page, ms: expect(page.locator("p")).to_contain_text(
        "moon", timeout=ms
    ),
    "have text 'tide and moon'": lambda page, ms: expect(page.locator("p")).to_have_text(
        "tide and moon", timeout=ms
    ),
    "URL": lambda page, ms: expect(page).to_have_url(re.compile("#drawn$"), timeout=ms),
}


@pytest.mark.parametrize("expected", ASSERTIONS)
def test_what_appears_later_is_waited_for_and_what_never_does_fails(
    page: Page, expected: str
) -> None:
    holds = ASSERTIONS[expected]
    with pytest.raises(AssertionError, match=re.escape(expected)):
        holds(page, 100)
    page.evaluate("later()")
    holds(page, 150_000)


def test_an_element_with_another_text_fails(page: Page) -> None:
    page.set_content("<p>tide</p>")
    for assertion in (
        expect(page.locator("p")).to_contain_text,
        expect(page.locator("p")).to_have_text,
    ):
        with pytest.raises(AssertionError, match="moon"):
            assertion("moon", timeout=100)


def test_several_elements_are_refused_and_lists_are_not(page: Page) -> None:
    page.set_content("<p>tide</p><p>moon</p>")
    with pytest.raises(Exception, match="strict mode violation"):
        expect(page.locator("p")).to_be_visible()
    expect(page.locator("p")).to_have_text(["tide", "moon"])
    expect(page.locator("q")).to_have_text([])
