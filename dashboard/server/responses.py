"""What the server adds to Streamlit's responses, for which Streamlit has no settings: headers that
prevent other sites from framing it; a style sheet and a script in the HTML head of every page; and
redirects from addresses of renamed or merged pages, so that old links still open the same view.

A style sent by a page's script would arrive after the elements it styles, so that pages jump, and
would be sent again with every rerun.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import URL, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poslens.dashboard.server import access

HEADERS = {
    # A frame runs with its user's rights: another site could trigger computations with only a link.
    "content-security-policy": "frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""Headers of every response. Page addresses contain typed texts, so they are not sent as
referrers."""


class Headers:
    """Adds `HEADERS` to each response of `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, sent)


STYLE = Path(__file__).parents[1] / "page.css"
SCRIPT = """
window.__streamlit = {BACKEND_BASE_URL: new URL(".", location.href).href};
{
  const push = history.pushState.bind(history), replace = history.replaceState.bind(history);
  let page = location.pathname, clicked = location.href, returned = false;
  addEventListener("click", () => { clicked = location.href; returned = false; }, true);
  history.pushState = (state, unused, url) => {
    if (new URL(url ?? "", location.href).pathname === page) return replace(state, unused, url);
    if (returned) return;
    if (new URL(clicked).pathname === page) replace(history.state, "", clicked);
    push(state, unused, url);
    page = location.pathname;
  };
  addEventListener("popstate", () => {
    if (location.pathname === page) return;
    page = location.pathname;
    returned = true;
    const asked = new URLSearchParams(location.search);
    for (const [name, value] of [...asked]) asked.append(`to.${name}`, value);
    asked.append("to.", "back");
    replace(history.state, "", `${page}?${asked}`);
  });
}
"""
"""Makes the folder of the page's address the server's base path: otherwise Streamlit first tries
the page's own address, where two requests answer 404. Keeps one browser history entry per page:
Streamlit adds one whenever a script changes the query, so that Back would stay on the page, and
another one for a script of the page just left that starts after Back, so that Forward would find
nothing. Keeps the query of the page that a link leaves, which Streamlit removes, and passes it on a
second time (`links.arrive`) when the user returns, because Streamlit drops parameters that both
pages have: so Back returns to the same view."""

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


RENAMED = {
    "bias": "cause?tab=Bias+tests",
    "cache": "storage",
    "faithfulness": "methods",
    "published": "curves?published=Qwen3-Embedding-8B&published=NV-Embed-v2",
    "remedy": "debias",
}
"""Old and new paths, relative to the first page. A query selects the tab or part of the new page
that used to be a page of its own."""


class RenamedPages:
    """Redirects requests for an old path, with their query, to the new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._root = access.current.root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        new = self._new_address(scope) if scope["type"] == "http" else None
        if new is None:
            await self.app(scope, receive, send)
        else:
            # Not a permanent redirect, which a browser would also apply to other programs on this
            # port.
            await RedirectResponse(new)(scope, receive, send)

    def _new_address(self, scope: Scope) -> str | None:
        path = scope["path"]
        if not path.startswith(self._root):
            return None
        new = RENAMED.get(path.removeprefix(self._root).strip("/"))
        if new is None:
            return None
        name, _, part = new.partition("?")
        query = scope["query_string"].decode("latin-1")
        if not parse_qs(part).keys() <= parse_qs(query, keep_blank_values=True).keys():
            query = "&".join(filter(None, (query, part)))
        # Without a host, because a proxy may serve the dashboard under another one.
        return str(URL(path=self._root + name, query=query))
