"""Response headers of the server, which prevent other sites from framing it."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poslens.dashboard.server.access_middleware import AccessMiddleware
from poslens.dashboard.server.page_head import PageHead
from poslens.dashboard.server.renamed_pages import RenamedPages

HEADERS = (
    # A frame runs with its user's rights: another site could trigger computations with only a link.
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of every response. Page addresses contain typed texts, so they are not sent as
referrers."""


class Headers:
    """Adds `HEADERS` to each response of `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in HEADERS}
                kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in own]
                message = {**message, "headers": [*kept, *HEADERS]}
            await send(message)

        await self.app(scope, receive, sent)


def install() -> None:
    """Patch Streamlit's server, which has no settings for this: add the headers, the checks of
    `AccessMiddleware`, the redirects of renamed pages, and the pages' head."""
    from streamlit import net_util
    from streamlit.web.server.starlette import starlette_server

    # For each request from a page of another site, Streamlit would ask an internet host for this
    # machine's address, block all users meanwhile, and accept pages from the address it gets.
    net_util.get_external_ip = lambda: None
    server: Any = starlette_server  # its function that creates the app is undocumented
    create = server.create_starlette_app

    def with_headers(*arguments: object) -> object:
        app = create(*arguments)
        app.add_middleware(PageHead)
        app.add_middleware(RenamedPages)
        app.add_middleware(AccessMiddleware)
        app.add_middleware(Headers)
        return app

    server.create_starlette_app = with_headers
