"""The heatmap inside Streamlit: drawn, themed, and with toggles that Python can read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.conftest import Visit, idle, until
from tests.e2e.waiting import expect
from tests.support.ports import free_port
from tests.support.served import ROOT, served

SCRIPT = """
import streamlit as st
from poslens.heatmap.data import Head, Pane, Rail, View
from poslens.dashboard.widgets.heatmap import heatmap


st.set_page_config(layout="wide")
view = View.from_dict(dict(st.query_params))
if st.button("by sentence"):
    view = View(level="sentence")
text = "Ice melts.\\n\\u0639\\u0627\\u0645 <img src=x onerror=alert(1)>"
if st.checkbox("longer"):
    text += " more"
rail = Rail((1.0,) * 100) if st.checkbox("curves") else None
panes = [
    Pane(f"{m}/document", m, "document", text, ((0, 3, 1.0), (4, 6, 0.5), (6, 9, 0.25)),
         words=((0, 3), (4, 9)), sentences=((0, 10),), rail=rail,
         head=Head("0.5") if rail else None)
    for m in ("one", "two")
]
chosen = heatmap(panes, view, key="map")
st.query_params.from_dict({k: str(v) for k, v in chosen.to_dict().items()})
st.text(f"{chosen.level} {chosen.aggregate} {chosen.range} {chosen.linked}")
"""


SERVER = """
import sys

import streamlit as st
from starlette.middleware import Middleware

from poslens.dashboard.server.static_files import StaticFiles

options = {
    "server.address": "127.0.0.1",
    "server.port": int(sys.argv[2]),
    "server.headless": True,
    "browser.gatherUsageStats": False,
    "server.fileWatcherType": "none",
}
st.App(sys.argv[1], middleware=[Middleware(StaticFiles)]).run(config=options)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = tmp_path_factory.mktemp("app") / "app.py"
    script.write_text(SCRIPT, encoding="utf-8")
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(script), str(port)]
    path = {"PYTHONPATH": str(ROOT)}
    with served(script.parent, port=port, environment=path, instead=command) as app:
        yield f"http://127.0.0.1:{port}"
    assert "already registered" not in app.said()


@pytest.fixture
def page(url: str, visit: Visit) -> Page:
    page = visit(url, theme="dark")
    page.wait_for_selector(".hm-text")
    return idle(page)


def expect_view(page: Page, text: str) -> None:
    expect(page.get_by_test_id("stText")).to_have_text(text)


def choose(page: Page, name: str) -> None:
    page.get_by_role("radio", name=name, exact=True).check()


def test_toggles_are_sent_to_python(page: Page) -> None:
    expect_view(page, "word sum shared True")
    choose(page, "Token")
    expect_view(page, "token sum shared True")
    # two quick changes: neither undoes the other
    choose(page, "Max")
    choose(page, "Own")
    page.get_by_role("checkbox", name="Scroll together").uncheck()
    expect_view(page, "token max own False")
    expect(page.locator(".hm-text").first.locator("[data-u]")).to_have_text(["Ice", "me", "lts"])
    expect(page).to_have_url(re.compile("level=token"))
    expect(page).to_have_url(re.compile("linked=False"))
    page.reload()
    page.wait_for_selector(".hm-text")
    expect_view(page, "token max own False")
    expect(page.get_by_role("radio", name="Own", exact=True)).to_be_checked()


def test_python_can_set_the_view_and_the_reader_can_change_it(page: Page) -> None:
    choose(page, "Token")
    expect_view(page, "token sum shared True")
    page.get_by_role("button", name="by sentence").click()
    expect_view(page, "sentence sum shared True")
    expect(page.get_by_role("radio", name="Sentence")).to_be_checked()
    choose(page, "Word")
    expect_view(page, "word sum shared True")
    page.wait_for_timeout(500)  # no later update from Python
    expect(page.get_by_role("radio", name="Word")).to_be_checked()


def test_the_view_is_kept_for_other_panes(page: Page) -> None:
    choose(page, "Token")
    expect_view(page, "token sum shared True")
    page.get_by_text("longer").click()
    expect(page.locator(".hm-text").first).to_contain_text("more")
    expect(page.get_by_role("radio", name="Token")).to_be_checked()
    expect(page.locator(".hm")).to_have_count(1)


def test_curves_added_later_do_not_redraw_the_text(page: Page) -> None:
    page.locator(".hm-text").first.evaluate("node => { node.kept = true; }")
    for shown in (2, 0, 2):
        page.get_by_text("curves").click()
        expect(page.locator(".hm-rail")).to_have_count(shown)
        expect(page.locator(".hm-score")).to_have_count(shown)
        assert page.locator(".hm-text").first.evaluate("node => node.kept")
    page.locator(".hm-text [data-u='1']").first.hover()
    expect(page.locator(".hm-rail-mark.hm-shown")).to_have_count(2)


def test_it_follows_the_theme_and_shows_markup_as_text(page: Page) -> None:
    root = page.locator(".hm")
    expect(root).to_have_attribute("data-theme", "dark")
    styles = root.evaluate(
        "node => [getComputedStyle(node).fontFamily, node.getRootNode().nodeName]"
    )
    assert "Source Sans" in styles[0]
    assert styles[1] == "#document-fragment"
    text = page.locator(".hm-text").first.evaluate("node => node.textContent")
    assert text == "Ice melts.\n\u0639\u0627\u0645 <img src=x onerror=alert(1)>"
    assert page.locator(".hm img").count() == 0


def test_no_horizontal_overflow(page: Page) -> None:
    heatmap = page.locator(".hm")  # in a shadow tree, which only a locator can search
    for width in (1440, 800):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("width => innerWidth === width", arg=width)
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        until(page, lambda: heatmap.evaluate("node => node.scrollWidth <= node.clientWidth"))


def test_changing_pairs_sends_texts_but_no_script(page: Page) -> None:
    sent: list[int] = []
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.on(
        "websocket",
        lambda socket: socket.on("framereceived", lambda frame: sent.append(len(frame))),
    )
    page.reload()
    page.wait_for_selector(".hm-text")
    idle(page)
    assert sent and sum(".js" in url and "/heatmap-" in url for url in fetched) == 1
    del sent[:], fetched[:]
    page.get_by_text("longer").click()
    expect(page.locator(".hm-text").first).to_contain_text("more")
    idle(page)
    assert 0 < sum(sent) < 30_000 and not any("/heatmap-" in url for url in fetched)


def test_a_missing_script_is_reported(url: str, browser: Browser) -> None:
    page = browser.new_page()
    page.route("**/heatmap-*.js", lambda route: route.abort())
    page.goto(url)
    expect(page.get_by_text("The heatmap's script could not be loaded.")).to_be_visible()
    page.close()
