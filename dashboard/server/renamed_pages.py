"""Redirects from addresses of renamed or merged pages, so that old links still open the same
view."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import URL
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from poslens.dashboard.server import access

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
        self._root = access.current().root

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
