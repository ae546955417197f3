"""The browser tells the server when a tab has drawn its first heatmap."""

from __future__ import annotations

import gc
import threading

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from poslens.dashboard.explain import view
from poslens.dashboard.server import access, first_heatmap
from poslens.dashboard.server.access import Access
from poslens.dashboard.server.first_heatmap import FOLDER, FirstHeatmap, FirstHeatmaps
from tests.support.pages import heatmap_panes, open_page


def client() -> TestClient:
    """The middleware in front of a server that answers everything else."""

    def other(request: Request) -> Response:
        return PlainTextResponse("other")

    app = Starlette(routes=[Route("/{path:path}", other)])
    app.add_middleware(FirstHeatmaps)
    return TestClient(app)


@pytest.mark.parametrize("base_path", ["", "tools/poslens"])
def test_only_the_tab_with_the_requested_token_has_drawn(
    base_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "current", Access(base_path=base_path))
    tabs = [FirstHeatmap(), FirstHeatmap()]
    for tab in tabs:
        first_heatmap._tabs[tab.token] = tab
    browser, folder = client(), access.current.root + FOLDER
    assert browser.get(folder + tabs[0].token).status_code == 204
    assert [tab.drawn.is_set() for tab in tabs] == [True, False]
    assert browser.get(folder + "unknown").status_code == 404
    assert browser.get(f"/x{folder}{tabs[1].token}").text == "other"
    assert not tabs[1].drawn.is_set()


def test_a_closed_tab_is_forgotten() -> None:
    tab = FirstHeatmap()
    first_heatmap._tabs[tab.token] = tab
    token = tab.token
    del tab
    gc.collect()
    assert token not in first_heatmap._tabs


def test_charts_follow_as_soon_as_the_heatmap_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause would exceed the page's timeout. The second run has nothing to wait for."""
    monkeypatch.setattr(view, "FIRST_PAUSE_S", 10_000.0)
    addresses = []

    def drawn_soon() -> str:
        addresses.append(address())
        if addresses[-1]:
            threading.Timer(0.1, client().get, ["/" + addresses[-1]]).start()
        return addresses[-1]

    address = first_heatmap.address
    monkeypatch.setattr(first_heatmap, "address", drawn_soon)
    page = open_page("explain", model="BM25").run()
    assert page.get("plotly_chart")
    page.run()
    assert page.get("plotly_chart") and heatmap_panes(page)
    assert addresses[0].startswith(FOLDER) and addresses[1:] == [""]
