"""Streamlit's scripts, styles and fonts are served from memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from streamlit import file_util

from poslens.dashboard.server import access
from poslens.dashboard.server.access import Access
from poslens.dashboard.server.static_files import CHARTS, COMPILE_HINT, StaticFiles

FOLDER = Path(file_util.get_static_dir())


def client() -> TestClient:
    """The middleware in front of a server that answers everything else."""

    def other(request: Request) -> Response:
        return PlainTextResponse("other")

    app = Starlette(routes=[Route("/{path:path}", other, methods=["GET", "POST"])])
    app.add_middleware(StaticFiles)
    return TestClient(app)


@pytest.mark.parametrize("base_path", ["", "tools/poslens"])
def test_served_files_equal_streamlits(base_path: str) -> None:
    access.current = Access(base_path=base_path)
    browser = client()
    for suffix, kind in {".css": "text/css", ".woff2": "font/woff2", ".js": "javascript"}.items():
        path = next(
            path for path in sorted(FOLDER.rglob(f"*{suffix}")) if not path.name.startswith(CHARTS)
        )
        url = f"{access.current.root}{path.relative_to(FOLDER).as_posix()}"
        for _ in range(2):
            answer = browser.get(url)
            assert answer.content == path.read_bytes()
            assert kind in answer.headers["content-type"]
            assert "immutable" in answer.headers["cache-control"]


def test_only_the_chart_script_starts_with_the_compile_hint() -> None:
    (script,) = (FOLDER / "static" / "js").glob(f"{CHARTS}*.js")
    answer = client().get(f"/static/js/{script.name}")
    assert answer.content == COMPILE_HINT + script.read_bytes()


@pytest.mark.parametrize(
    "path", ["/", "/static/", "/static/js/none.js", "/static/../index.html", "/static/%2e%2e/x"]
)
def test_other_requests_are_passed_on(path: str) -> None:
    assert client().get(path).text == "other"


def test_other_methods_are_passed_on() -> None:
    file = next((FOLDER / "static" / "css").iterdir()).name
    assert client().post(f"/static/css/{file}").text == "other"
