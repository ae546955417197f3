"""Where the server listens, and which requests it admits before a page runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect
from streamlit import config, net_util
from streamlit.web.server import server_util

from poslens.attribution.errors import UserError
from poslens.compute.settings import PEOPLE
from poslens.dashboard.server import access, streamlit_app
from poslens.dashboard.server.access import OWN_HOSTS, Access, access_of
from poslens.dashboard.server.access_middleware import AccessMiddleware


def test_the_default_is_this_machine_only() -> None:
    found = access_of()
    assert found == Access() and not found.beyond_this_machine and not found.knows_people
    assert found.url(8501) == "http://127.0.0.1:8501"


@pytest.mark.parametrize(
    "asked",
    [
        {"host": "0.0.0.0", "allowed_hosts": ["poslens.example.org"]},
        {"host": "::", "allowed_hosts": ["poslens.example.org"]},
        {"host": "192.0.2.7"},
        # The server is on the loopback address, but a proxy on this machine forwards others.
        {"allowed_hosts": ["poslens.example.org"]},
        {"allowed_hosts": ["*.example.org"]},
        {"allowed_hosts": ["192.0.2.7"]},
    ],
)
def test_other_machines_are_allowed_only_with_identification(asked: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="who has access"):
        access_of(**asked)
    for said in ({"login": True}, {"login": False}, {"trusted_proxies": ["10.0.0.1"]}):
        found = access_of(**asked, **said)
        assert found.beyond_this_machine
        assert found.knows_people == (said != {"login": False})


@pytest.mark.parametrize(
    "asked",
    [{"host": "127.0.0.2"}, {"host": "::1"}, {"allowed_hosts": ["localhost", "127.0.0.1"]}],
)
def test_every_name_of_the_loopback_address_counts_as_this_machine(asked: dict[str, Any]) -> None:
    assert not access_of(**asked).beyond_this_machine


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"host": "nowhere"}, "--host must be an address"),
        ({"host": "0.0.0.0", "login": False}, "specify the host names"),
        ({"allowed_hosts": ["https://poslens.example.org"], "login": True}, "must be a host name"),
        ({"allowed_hosts": ["poslens.example.org:80"], "login": True}, "must be a host name"),
        ({"allowed_hosts": ["*"], "login": True}, "must be a host name"),
        ({"base_path": "tools//poslens"}, "single slashes"),
        ({"base_path": "//poslens"}, "single slashes"),
        ({"base_path": "../poslens"}, "single slashes"),
        ({"base_path": "a?b"}, "single slashes"),
        ({"trusted_proxies": ["proxy"]}, "must be the proxy's address or network"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "must be the proxy's address or network"),
        ({"trusted_proxies": ["10.0.0.1"], "login": True}, "already determines who has access"),
        ({"trusted_proxies": ["10.0.0.1"], "login": False}, "already determines who has access"),
        ({"user_header": "X-User"}, "with --trusted-proxy"),
        (
            {"trusted_proxies": ["10.0.0.1"], "user_header": "X User"},
            "must be the name of a header",
        ),
    ],
)
def test_invalid_settings_are_refused_in_one_sentence(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        access_of(**asked)
    assert "\n" not in str(refused.value)


def test_a_list_of_people_without_login_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PEOPLE.name, "anna@example.org")
    with pytest.raises(UserError, match=f"{PEOPLE.name} restricts access by name"):
        access_of(allowed_hosts=["poslens.example.org"], login=False)
    assert access_of().hosts == OWN_HOSTS, "this machine's user alone"
    assert access_of(allowed_hosts=["poslens.example.org"], login=True).login


@pytest.mark.parametrize("given", ["poslens", "/poslens", "poslens/", "/poslens/"])
def test_a_base_path_needs_no_leading_or_trailing_slash(given: str) -> None:
    found = access_of(base_path=given)
    assert found.base_path == "poslens" and found.url(80) == "http://127.0.0.1:80/poslens"


def test_the_command_refuses_before_it_loads_anything() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dashboard", "run", "--host", "0.0.0.0"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 2 and "--no-login" in ended.stderr
    assert ended.stderr.count("\n") == 1 and not ended.stdout


# -- the access middleware -------------------------------------------------------------------------


def client(found: Access, monkeypatch: pytest.MonkeyPatch, peer: str = "10.0.0.1") -> TestClient:
    def whole(request: Request) -> Response:
        return PlainTextResponse("inside")

    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("inside")
        await socket.close()

    access.current = found
    monkeypatch.setattr(config, "get_option", {"server.allowedHosts": list(found.hosts)}.get)
    app = Starlette(routes=[WebSocketRoute("/{path:path}", stream), Route("/{path:path}", whole)])
    app.add_middleware(AccessMiddleware)
    return TestClient(app, base_url="http://poslens.example.org", client=(peer, 4000))


PROXY = access_of(allowed_hosts=["poslens.example.org"], trusted_proxies=["10.0.0.0/24"])
SOCKET = "ws://poslens.example.org/_stcore/stream"
ANNA = {"X-Forwarded-User": "anna"}


def test_another_sites_page_is_refused_without_a_request_to_the_internet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(net_util, "_make_blocking_http_get", lambda url, **_: asked.append(url))
    monkeypatch.setattr(net_util, "get_external_ip", net_util.get_external_ip)
    streamlit_app.ask_no_internet_host()
    assert not server_util.is_url_from_allowed_origins("http://evil.example.org") and not asked


def test_an_unknown_host_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    here = client(Access(), monkeypatch)
    refused = here.get("/curves")
    assert refused.status_code == 421 and "'poslens.example.org'" in refused.text
    assert "--allowed-host" in refused.text
    assert here.get("/curves", headers={"host": "localhost:8501"}).text == "inside"
    assert here.get("/curves", headers={"host": "<b>"}).status_code == 421
    with pytest.raises(WebSocketDisconnect), here.websocket_connect(SOCKET):
        pass


def test_health_checks_are_answered_for_any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    here = client(access_of(base_path="a", trusted_proxies=["10.9.9.9"]), monkeypatch)
    assert here.get("/a/_stcore/health").text == "inside"
    for path in ("/_stcore/health", "/a_stcore/health", "/a/_stcore/health/x"):
        assert here.get(path).status_code == 421, path


@pytest.mark.parametrize("peer", ["10.0.1.1", "127.0.0.1", "::1", "testclient", ""])
def test_only_the_proxys_user_header_is_trusted(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = client(PROXY, monkeypatch, peer)
    assert here.get("/", headers=ANNA).status_code == 403
    with pytest.raises(WebSocketDisconnect), here.websocket_connect(SOCKET, headers=ANNA):
        pass


@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.7"])
def test_the_proxy_is_admitted_with_a_name(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = client(PROXY, monkeypatch, peer)
    assert here.get("/", headers=ANNA).text == "inside"
    assert here.get("/", headers={"X-Forwarded-User": "zoë ā".encode()}).text == "inside"
    with here.websocket_connect(SOCKET, headers=ANNA) as socket:
        assert socket.receive_text() == "inside"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-Forwarded-User", "")],
        [("X-Forwarded-User", "x" * 201)],
        [("X-Forwarded-User", "a\tb")],
        [("X-Forwarded-User", "anna"), ("X-Forwarded-User", "bert")],
        [("X-Forwarded-For", "10.0.0.1")],
    ],
)
def test_the_proxy_must_name_exactly_one_person(
    headers: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = client(PROXY, monkeypatch)
    refused = here.get("/", headers=headers)
    assert refused.status_code == 403 and "one name in X-Forwarded-User" in refused.text


def test_metrics_are_served_to_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    here = client(PROXY, monkeypatch)
    assert here.get("/_stcore/metrics", headers=ANNA).status_code == 404
    here = client(Access(), monkeypatch)
    assert here.get("/_stcore/metrics", headers={"host": "localhost"}).text == "inside"


def test_files_need_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlit.web.server import server_util
    from streamlit.web.server.starlette.starlette_app_utils import create_signed_value

    monkeypatch.setattr(server_util, "get_cookie_secret", lambda: "k" * 32)
    here = client(access_of(allowed_hosts=["poslens.example.org"], login=True), monkeypatch)
    assert here.get("/").text == "inside", "the page that asks to log in"
    for path in ("/media/x.csv", "/_stcore/upload_file/a/b"):
        assert here.get(path).status_code == 403
        for cookie in ("x", create_signed_value("l" * 32, "_streamlit_user", "{}").decode()):
            assert here.get(path, headers={"cookie": f"_streamlit_user={cookie}"}).is_error
        cookie = create_signed_value("k" * 32, "_streamlit_user", "{}").decode()
        assert here.get(path, headers={"cookie": f"_streamlit_user={cookie}"}).text == "inside"
