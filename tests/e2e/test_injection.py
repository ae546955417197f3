"""A malicious link can't make the reader's browser send requests to other sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Page, Request

from tests.e2e.conftest import App, idle
from tests.e2e.waiting import expect

PAGES = [
    "",
    "compare",
    "curves",
    "why",
    "why?tab=All+misses",
    "cause",
    "ranking",
    "map",
    "methods",
    "methods?tab=Agreement+with+interventions",
    "cause?tab=Data+set",
    "cause?tab=Bias+tests",
    "storage",
]
OUTSIDE = "outside.invalid"
TEXT = (
    f"![x](http://{OUTSIDE}/i.png) [y](https://{OUTSIDE}/l) http://{OUTSIDE} www.{OUTSIDE}/w "
    f"me@{OUTSIDE}"
)
NAMES = (
    "pair",
    "dataset",
    "models",
    "a",
    "b",
    "model",
    "first",
    "published",
    "method",
    "methods",
    "tests",
    "test",
    "under",
    "item",
    "search",
    "domain",
    "order",
    "of",
    "color",
    "by",
)


def linked(page: Page) -> list[str]:
    """Links and images of the page that point outside."""
    return page.evaluate(
        "outside => [...document.querySelectorAll('a, img, [style*=url]')]"
        ".map(e => e.outerHTML).filter(html => html.includes(outside))",
        OUTSIDE,
    )


@pytest.fixture
def asked(go: Callable[..., Page], app: App) -> Iterator[Callable[..., Page]]:
    """`asked(name, **query)`: a page with this query in its address, once its script has ended.
    Fails if a request left this machine."""
    page = go("about:blank")
    left: list[str] = []

    def note(request: Request) -> None:
        left.append(request.url)

    page.on("request", note)

    def opened(name: str, **query: object) -> Page:
        join = "&" if "?" in name else "?"
        page.goto(f"{app.url}/{name}{join}{urlencode(query, doseq=True)}")
        expect(page.get_by_test_id("stMainBlockContainer")).not_to_be_empty()
        # Its last requests, for fonts and parts of the program, are finished.
        idle(page).wait_for_load_state("networkidle")
        assert [url for url in left if urlsplit(url).hostname not in ("127.0.0.1", None)] == []
        return page

    yield opened
    page.remove_listener("request", note)


@pytest.mark.parametrize("name", PAGES)
def test_names_in_the_address_do_not_become_links(asked: Callable[..., Page], name: str) -> None:
    page = asked(name, **dict.fromkeys(NAMES, TEXT))
    assert linked(page) == []
    for tip in page.get_by_test_id("stTooltipIcon").filter(visible=True).all()[:6]:
        tip.hover()
        assert linked(page) == []


def test_typed_texts_in_the_address_do_not_become_links(asked: Callable[..., Page]) -> None:
    page = asked("", text="Own text", q=TEXT, d=f"Ice melts. {TEXT}", models="MiniLM")
    expect(page.locator(".hm-pane[data-side=document]")).to_be_visible()
    assert linked(page) == []


def test_the_check_detects_a_link(go: Callable[..., Page]) -> None:
    page = go("about:blank")
    page.set_content(f"<a href='http://{OUTSIDE}/'>x</a>")
    assert len(linked(page)) == 1
