"""Inserts a style sheet and a short script into the HTML head of every page.

Streamlit has no setting for either. A style sent by a page's script would arrive after the elements
it styles, so that pages jump, and would be sent again with every rerun.
"""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STYLE = Path(__file__).parents[1] / "page.css"
SCRIPT = """
window.__streamlit = {BACKEND_BASE_URL: new URL(".", location.href).href};
{
  const push = history.pushState.bind(history);
  history.pushState = (state, unused, url) => {
    const same = new URL(url ?? "", location.href).pathname === location.pathname;
    (same ? history.replaceState.bind(history) : push)(state, unused, url);
  };
}
"""
"""Makes the folder of the page's address the server's base path: otherwise Streamlit first tries
the page's own address, where two requests answer 404. Keeps one browser history entry per page:
Streamlit adds one whenever a script changes the query, so that Back would stay on the page."""

# Request headers that could make the server send a compressed, partial or empty response.
_HINDER = {b"accept-encoding", b"range", b"if-range", b"if-none-match", b"if-modified-since"}
# Response headers that are no longer valid once the page is modified.
_STALE = {b"content-length", b"etag", b"last-modified"}


class PageHead:
    """Inserts `STYLE` and `SCRIPT` into the head of each HTML page that `app` serves."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        style = STYLE.read_text(encoding="utf-8")
        self._head = f"<style>\n{style}</style><script>{SCRIPT}</script></head>".encode()

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
                body = body.replace(b"</head>", self._head, 1)
                others = [pair for pair in start["headers"] if pair[0].lower() not in _STALE]
                length = (b"content-length", str(len(body)).encode())
                await send({**start, "headers": [*others, length]})
                message = {"type": "http.response.body", "body": body}
            await send(message)

        others = [pair for pair in headers if pair[0].lower() not in _HINDER]
        await self.app({**scope, "headers": others}, receive, sent)
