"""The style that every page has from its first moment.

Streamlit has no setting for it. A style that a script sends arrives after what it styles, so that
pages jump, and is sent again with every rerun.
"""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STYLE = Path(__file__).parents[1] / "page.css"
# What would let the server answer with a packed page, a part of one or none.
_HINDER = {b"accept-encoding", b"range", b"if-range", b"if-none-match", b"if-modified-since"}
# What the server says of the page as it was without the style.
_STALE = {b"content-length", b"etag", b"last-modified"}


class PageStyle:
    """Puts `STYLE` into the head of each HTML page that `app` answers with."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        style = STYLE.read_text(encoding="utf-8")
        self._style = f"<style>\n{style}</style></head>".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())
        asked = scope["type"] == "http" and scope["method"] == "GET"
        if not asked or b"text/html" not in dict(headers).get(b"accept", b""):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def sent(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                if dict(message["headers"]).get(b"content-type", b"").startswith(b"text/html"):
                    start = message
                    return
            elif start is not None and message["type"] == "http.response.body":
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                body = body.replace(b"</head>", self._style, 1)
                kept = [pair for pair in start["headers"] if pair[0].lower() not in _STALE]
                length = (b"content-length", str(len(body)).encode())
                await send({**start, "headers": [*kept, length]})
                message = {"type": "http.response.body", "body": body}
            await send(message)

        kept = [pair for pair in headers if pair[0].lower() not in _HINDER]
        await self.app({**scope, "headers": kept}, receive, sent)
