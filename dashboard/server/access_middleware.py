"""Access checks before a page runs: the requested host name, the proxy, and the login."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from poslens.dashboard.server import access
from poslens.dashboard.server.access import Access, address_of

HEALTH = "_stcore/health"
METRICS = "_stcore/metrics"
_FILES = ("_stcore/upload_file/", "media/")
MAX_NAME = 200

Refusal = tuple[int, str]


class AccessMiddleware:
    """Answers requests that `refusal` rejects, in place of `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._access = access.current

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal(self._access, scope) if scope["type"] in ("http", "websocket") else None
        if refused is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before accept: 403
        else:
            code, sentence = refused
            text = f"{sentence}\n".encode("utf-8", "backslashreplace")
            await PlainTextResponse(text, code)(scope, receive, send)


def refusal(access: Access, scope: Scope) -> Refusal | None:
    """Why a request is rejected, as a status and a sentence; None if it is allowed."""
    from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

    base = access.root
    path = scope["path"].removeprefix(base)
    if scope["path"] == base + HEALTH:
        return None  # health checks use the IP address
    host = _header(scope, "host")
    if not is_host_allowed(host[0] if len(host) == 1 else None):
        shown = ascii(host[0][:MAX_NAME]) if host else "no name"
        return 421, (
            f"This PosLens doesn't serve the host name {shown}. Its administrator can allow the "
            "name with --allowed-host."
        )
    if access.proxies:
        peer = address_of((scope.get("client") or ("", 0))[0])
        if peer is None or not any(peer in network for network in access.proxies):
            return 403, "PosLens only accepts requests from its proxy."
        names = _header(scope, access.user_header)
        # One of two user names may have been sent by the client.
        if len(names) != 1 or not names[0].isprintable() or not 0 < len(names[0]) <= MAX_NAME:
            return 403, f"The proxy must send exactly one name in {access.user_header}."
    if path == METRICS and access.beyond_this_machine:
        return 404, "Not found"
    if access.login and path.startswith(_FILES) and not _has_logged_in(scope):
        return 403, "Log in first."
    return None


def readable(value: bytes) -> str:
    """A header's value, decoded as UTF-8, which proxies use for names, or else as HTTP's
    Latin-1."""
    try:
        return value.decode("utf-8").strip()
    except UnicodeDecodeError:
        return value.decode("latin-1").strip()


def _header(scope: Scope, name: str) -> list[str]:
    key_of_name = name.lower().encode("latin-1")
    return [readable(value) for key, value in scope["headers"] if key == key_of_name]


def _has_logged_in(scope: Scope) -> bool:
    """Whether the request has the cookie that Streamlit signs for users who have logged in."""
    from starlette.requests import HTTPConnection
    from streamlit.web.server.server_util import get_cookie_secret
    from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value
    from streamlit.web.server.starlette.starlette_server_config import USER_COOKIE_NAME

    cookie = HTTPConnection(scope).cookies.get(USER_COOKIE_NAME)
    if cookie is None:
        return False
    signed = cookie.encode("latin-1", "replace")
    return decode_signed_value(get_cookie_secret(), USER_COOKIE_NAME, signed) is not None
