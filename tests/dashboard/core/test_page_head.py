"""Pages start with their style and their server's address; other answers are unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from poslens.dashboard.server.responses import SCRIPT, STYLE, PageHead

PAGE = "<html><head><title>é</title></head><body></body></html>"
BROWSER = {"accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """A server that compresses its answers, like Streamlit's."""
    file = tmp_path / "index.html"
    file.write_text(PAGE * 50, encoding="utf-8")

    def page(request: Request) -> Response:
        return FileResponse(file)

    def data(request: Request) -> Response:
        return JSONResponse({"html": "</head>"})

    app = Starlette(routes=[Route("/", page), Route("/data", data)])
    app.add_middleware(GZipMiddleware, minimum_size=1)
    app.add_middleware(PageHead)
    return TestClient(app)


def test_the_head_is_inserted_once(client: TestClient) -> None:
    answer = client.get("/", headers=BROWSER)
    style = STYLE.read_text(encoding="utf-8")
    head = f"<style>\n{style}</style><script>{SCRIPT}</script></head>"
    assert answer.text == (PAGE * 50).replace("</head>", head, 1)
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_a_page_is_sent_in_full_whatever_the_browser_has_cached(client: TestClient) -> None:
    plain = client.get("/", headers={"accept": "*/*"})
    asked = {"if-none-match": plain.headers["etag"], "range": "bytes=0-9"}
    answer = client.get("/", headers={**BROWSER, **asked})
    assert answer.status_code == 200 and "etag" not in answer.headers
    assert STYLE.read_text(encoding="utf-8") in answer.text


def test_other_answers_are_unchanged(client: TestClient) -> None:
    assert client.get("/data", headers=BROWSER).json() == {"html": "</head>"}
    assert client.get("/", headers={"accept": "*/*"}).text == PAGE * 50
