"""Links to a page's old address open it under its new one, with their query."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from poslens.dashboard.server import access
from poslens.dashboard.server.access import Access
from poslens.dashboard.server.responses import RENAMED, RenamedPages
from tests.support.pages import page_file


def client(base_path: str = "") -> TestClient:
    def inside(request: Request) -> Response:
        return PlainTextResponse(request.url.path)

    access.current = Access(base_path=base_path)
    app = Starlette(routes=[Route("/{path:path}", inside)])
    app.add_middleware(RenamedPages)
    return TestClient(app, follow_redirects=False)


@pytest.mark.parametrize(
    ("base_path", "asked", "target"),
    [
        ("", "/remedy", "/debias"),
        ("", "/cache?dataset=mine", "/storage?dataset=mine"),
        ("", "/bias?tests=position", "/cause?tests=position&tab=Bias+tests"),
        ("", "/published", "/curves?published=Qwen3-Embedding-8B&published=NV-Embed-v2"),
        ("", "/bias?tab=A+pair", "/cause?tab=A+pair"),
        (
            "",
            "/remedy/?model=MiniLM&strength=0.5&q=%C3%A9",
            "/debias?model=MiniLM&strength=0.5&q=%C3%A9",
        ),
        ("tools/lens", "/tools/lens/remedy?model=a", "/tools/lens/debias?model=a"),
    ],
)
def test_an_old_address_redirects_to_the_new_one(base_path: str, asked: str, target: str) -> None:
    answer = client(base_path).get(asked)
    assert (answer.status_code, answer.headers["location"]) == (307, target)


@pytest.mark.parametrize("path", ["/debias", "/remedy/x", "/x/remedy", "/"])
def test_other_addresses_are_not_redirected(path: str) -> None:
    assert client().get(path).text == path


def test_old_addresses_redirect_to_existing_pages() -> None:
    assert all(page_file(URL(new).path).is_file() for new in RENAMED.values())
