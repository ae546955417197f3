"""Addresses of pages that were renamed: links to the old ones still open the page."""

from __future__ import annotations

from starlette.datastructures import URL
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from poslens.dashboard.server import access

RENAMED = {"remedy": "debias"}
"""Old paths and new ones, below the path of the first page."""


class RenamedPages:
    """Redirects requests for an old path, with their query, to the new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._root = access.current().root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        new = self._new_path(scope["path"]) if scope["type"] == "http" else None
        if new is None:
            await self.app(scope, receive, send)
            return
        # Without a host: a proxy may serve the dashboard under another one.
        target = URL(path=new, query=scope["query_string"].decode("latin-1"))
        await RedirectResponse(str(target), status_code=308)(scope, receive, send)

    def _new_path(self, path: str) -> str | None:
        if not path.startswith(self._root):
            return None
        name = RENAMED.get(path.removeprefix(self._root).strip("/"))
        return None if name is None else self._root + name
