"""What every answer of the server tells the browser: that no other site may frame it."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poslens.dashboard.server.access_middleware import AccessMiddleware
from poslens.dashboard.server.page_head import PageHead
from poslens.dashboard.server.renamed_pages import RenamedPages

HEADERS = (
    # A frame loads and clicks as its reader: another site could have work done with a link alone.
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
"""Of every answer. The address of a page holds typed texts, so no other site is told it."""


class Headers:
    """Adds `HEADERS` to each answer of `app`."""

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
    """Let Streamlit's server, which has no setting for any of it, send them, let in only whom
    `AccessMiddleware` lets in, redirect renamed pages, and complete the head of pages."""
    from streamlit import net_util
    from streamlit.web.server.starlette import starlette_server

    # Each time that a page of another site knocks it would ask a host on the internet for this
    # machine's address, let everybody wait for that, and let in pages of the address it is told.
    net_util.get_external_ip = lambda: None
    server: Any = starlette_server  # what it makes an app with is none of its documented names
    create = server.create_starlette_app

    def with_headers(*arguments: object) -> object:
        app = create(*arguments)
        app.add_middleware(PageHead)
        app.add_middleware(RenamedPages)
        app.add_middleware(AccessMiddleware)
        app.add_middleware(Headers)
        return app

    server.create_starlette_app = with_headers
