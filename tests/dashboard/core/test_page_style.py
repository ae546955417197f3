"""Pages have their style and name their scripts from the first moment; other answers stay as they
are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from streamlit import file_util

from dashboard.core import access, page_scripts
from dashboard.core.access import Access
from dashboard.core.page_style import STYLE, PageStyle

PAGE = "<html><head><title>é</title></head><body></body></html>"
BROWSER = {"accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """A server that packs what it can, as Streamlit's does."""
    file = tmp_path / "index.html"
    file.write_text(PAGE * 50, encoding="utf-8")

    def page(request: Request) -> Response:
        return FileResponse(file)

    def data(request: Request) -> Response:
        return JSONResponse({"html": "</head>"})

    app = Starlette(routes=[Route("/", page), Route("/data", data)])
    app.add_middleware(GZipMiddleware, minimum_size=1)
    app.add_middleware(PageStyle)
    return TestClient(app)


def test_a_page_gets_the_style_once(client: TestClient) -> None:
    answer = client.get("/", headers=BROWSER)
    style = STYLE.read_text(encoding="utf-8")
    added = f"<style>\n{style}</style>{page_scripts.links('/')}</head>"
    assert answer.text == (PAGE * 50).replace("</head>", added, 1)
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_a_page_is_whole_and_new_whatever_the_browser_has_of_it(client: TestClient) -> None:
    plain = client.get("/", headers={"accept": "*/*"})
    asked = {"if-none-match": plain.headers["etag"], "range": "bytes=0-9"}
    answer = client.get("/", headers={**BROWSER, **asked})
    assert answer.status_code == 200 and "etag" not in answer.headers
    assert STYLE.read_text(encoding="utf-8") in answer.text


def test_other_answers_stay_as_they_are(client: TestClient) -> None:
    assert client.get("/data", headers=BROWSER).json() == {"html": "</head>"}
    assert client.get("/", headers={"accept": "*/*"}).text == PAGE * 50


SCRIPTS = Path(file_util.get_static_dir()) / "static" / "js"


def named(path: str) -> list[str]:
    """Scripts that a page's head names beside Streamlit's own."""
    return re.findall(r'href="./static/js/([^"]+)"', page_scripts.links(path))


@pytest.mark.parametrize("path", ["/", "/explain", "/cache", "/curves", "/passport"])
def test_what_is_named_is_there_once_with_all_that_it_imports(path: str) -> None:
    found = named(path)
    assert len(set(found)) == len(found) > 0
    known = {*found, *re.findall(r"js/([^\"]+)", (SCRIPTS.parents[1] / "index.html").read_text())}
    for name in found:
        for line in (SCRIPTS / name).read_text(encoding="utf-8").splitlines():
            if line.startswith("import"):
                imports = re.findall(r'(?:import|from)"./([^"]+)"', line.split(";var ")[0])
                assert set(imports) <= known, name


def test_a_chart_s_script_is_named_where_a_chart_comes_first() -> None:
    of = {path: " ".join(named(path)) for path in ("/", "/explain", "/compare", "/cache", "/map")}
    assert [path for path, names in of.items() if "PlotlyChart" in names] == ["/map"]
    assert [path for path, names in of.items() if "DataFrame" in names] == ["/cache"]


def test_the_first_page_is_known_below_a_base_path(monkeypatch: pytest.MonkeyPatch) -> None:
    root, map_page = page_scripts.links("/"), page_scripts.links("/map")
    monkeypatch.setattr(access, "current", lambda: Access(base_path="lens"))
    assert page_scripts.links("/lens") == page_scripts.links("/lens/") == root != map_page
    assert page_scripts.links("/lens/map") == map_page
