"""A link to a hub model: nothing is fetched without a click, and pages can't be framed."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.e2e.conftest import App, idle
from tests.e2e.waiting import expect
from tests.fake_hub import FakeHub, serving

PAGES = ["", "compare", "curves", "cause", "ranking", "map", "methods"]
NAMES = ["models", "model", "a", "b"]


@pytest.fixture(scope="module")
def hub_app(
    start_app: Callable[..., App],
    tiny_folder: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[FakeHub, App]]:
    """A hub, and a dashboard that can reach it."""
    with serving(FakeHub("evil/repo", tiny_folder("bert"))) as hub:
        home = tmp_path_factory.mktemp("hub")
        yield hub, start_app(environment=hub.environment(home))


def test_a_link_fetches_nothing_without_a_click(
    go: Callable[..., Page], hub_app: tuple[FakeHub, App]
) -> None:
    hub, app = hub_app
    before = list(hub.requests)
    for name in PAGES:
        page = go(f"{app.url}/{name}?" + "&".join(f"{key}=evil%2Frepo" for key in NAMES))
        expect(page.get_by_text("evil/repo is not on this machine").first).to_be_visible()
        assert idle(page).get_by_role("button", name="Download").count() == 0
        assert hub.requests == before, name
    page.wait_for_timeout(3000)  # time for later requests of the page
    assert hub.requests == before


def test_the_first_click_shows_the_size_and_the_second_fetches(
    visit: Callable[..., Page], hub_app: tuple[FakeHub, App]
) -> None:
    hub, app = hub_app
    page = visit(f"{app.url}/?models=evil%2Frepo&method=saliency&pair=food-sourdough-q2")
    idle(page).get_by_role("button", name="Check the size").click()
    fetch = page.get_by_role("button", name="Download")
    expect(fetch).to_contain_text("free")
    assert not any("resolve" in request for request in hub.requests)
    idle(page)
    fetch.click()
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    assert any("resolve" in request for request in hub.requests)


def test_pages_cannot_be_framed_by_other_sites(app: App) -> None:
    for path in ("/", "/curves", "/_stcore/health", "/_stcore/host-config"):
        with urllib.request.urlopen(app.url + path) as answer:
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], path
            assert answer.headers["x-frame-options"] == "DENY"
