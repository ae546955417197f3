"""Login settings are read from the environment and a file, and refused in one sentence."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from poslens.attribution.errors import UserError
from poslens.dashboard.server import oidc
from poslens.dashboard.server.access import access_of

ACCESS = access_of(base_path="tools", allowed_hosts=["poslens.example.org"], login=True)
GOOD = {
    "POSLENS_OIDC_METADATA_URL": "https://id.example.org/.well-known/openid-configuration",
    "POSLENS_OIDC_CLIENT_ID": "poslens",
    "POSLENS_OIDC_CLIENT_SECRET": "hush-client",
    "POSLENS_OIDC_REDIRECT_URI": "https://poslens.example.org/tools/oauth2callback",
    "POSLENS_COOKIE_SECRET": "hush-cookie-" * 3,
}
FILE = """
[auth]
server_metadata_url = "https://id.example.org/.well-known/openid-configuration"
client_id = "from the file"
client_secret = "hush"
redirect_uri = "https://poslens.example.org/tools/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
"""


@pytest.fixture(autouse=True)
def _no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    found = oidc.section(ACCESS)
    assert found["client_id"] == "poslens" and found["client_secret"] == "hush-client"
    assert set(found) == set(oidc._KEYS)


def test_settings_are_read_from_a_file_and_overridden_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(FILE)
    monkeypatch.setenv("POSLENS_SECRETS", str(file))
    assert oidc.section(ACCESS)["client_id"] == "from the file"
    monkeypatch.setenv("POSLENS_OIDC_CLIENT_ID", "from the environment")
    assert oidc.section(ACCESS)["client_id"] == "from the environment"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("POSLENS_OIDC_CLIENT_SECRET", "", "needs client_secret: set POSLENS_OIDC_CLIENT_SECRET,"),
        ("POSLENS_COOKIE_SECRET", "hush", "fewer than 32 characters"),
        ("POSLENS_OIDC_METADATA_URL", "id.example.org", "isn't a valid address"),
        ("POSLENS_OIDC_METADATA_URL", "https://[", "isn't a valid address"),
        ("POSLENS_OIDC_REDIRECT_URI", "file:///etc/passwd", "isn't a valid address"),
        ("POSLENS_OIDC_REDIRECT_URI", "https://poslens.example.org/", "/tools/oauth2callback"),
        (
            "POSLENS_OIDC_REDIRECT_URI",
            "https://else.example.org/tools/oauth2callback",
            "--allowed-host else.example.org",
        ),
    ],
)
def test_missing_or_invalid_settings_are_refused_in_one_sentence(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, good in GOOD.items():
        monkeypatch.setenv(key, good)
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused:
        oidc.section(ACCESS)
    said = str(refused.value)
    assert message in said and "\n" not in said and "hush" not in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "doesn't exist"),
        (b"[auth", "isn't a valid TOML file"),
        (b"\xff", "can't read"),
        (b"auth = 3", "no section"),
        (b"[auth]\nclient_id = 3\n", "needs server_metadata_url, client_id"),
    ],
)
def test_an_invalid_file_is_refused_in_one_sentence(
    content: bytes | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.toml"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("POSLENS_SECRETS", str(file))
    with pytest.raises(UserError, match=message):
        oidc.section(ACCESS)


class Provider(BaseHTTPRequestHandler):
    """Answers with its server's `answer`."""

    def do_GET(self) -> None:
        status, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


WHOLE = b'{"issuer": "i", "authorization_endpoint": "a", "token_endpoint": "t"}'


@pytest.mark.parametrize(
    ("status", "body", "well"),
    [
        (200, WHOLE, True),
        (500, WHOLE, False),
        (200, b"{}", False),
        (200, b"[]", False),
        (200, b"<html>", False),
        (200, b"\xff", False),
    ],
)
def test_an_invalid_provider_is_reported(status: int, body: bytes, well: bool) -> None:
    with HTTPServer(("127.0.0.1", 0), Provider) as server:
        server.answer = (status, body)  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/.well-known/openid-configuration"
        said = oidc.trouble(url)
        thread.join()
    assert bool(said) is not well and "\n" not in said
    if not well:
        assert url in said and "POSLENS_OIDC_METADATA_URL" in said
    assert oidc.trouble(url).startswith("Nobody can log in, because"), "it is gone"


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"checkout of PosLens"):
        oidc.section(ACCESS)
