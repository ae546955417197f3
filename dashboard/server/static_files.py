"""Serves Streamlit's scripts, styles and fonts, and the heatmap's code, from memory.

A browser that has nothing yet requests some 60 files before the first page appears. Streamlit looks
up, opens and reads each in a thread, which takes the server longer than sending it. The heatmap's
code is a file, because it would be sent again with every click if it were part of the component.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit import file_util

from poslens.dashboard.server import access
from poslens.heatmap.assets import page_module, page_module_name

_HEADERS = {"cache-control": "public, max-age=31536000, immutable"}  # names contain a hash

CHARTS = "PlotlyChart."
"""Start of the name of the script that draws charts."""
COMPILE_HINT = b"//# allFunctionsCalledOnLoad\n"
"""First line of a script whose functions Chrome compiles in a background thread. Without it, the
script that draws charts blocks the page for half a second longer while tables wait."""


class StaticFiles:
    """Answers requests for files below Streamlit's `static` folder and for the heatmap's code;
    `app` answers all others. A file stays in memory once requested."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        folder = Path(file_util.get_static_dir()) / "static"
        root = access.current.root
        self._files = {
            f"{root}static/{path.relative_to(folder).as_posix()}": path
            for path in folder.rglob("*")
            if path.is_file()
        }
        code = Response(page_module(), media_type="text/javascript", headers=_HEADERS)
        self._responses: dict[str, ASGIApp] = {f"{root}{page_module_name()}": code}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"] if scope["type"] == "http" and scope["method"] == "GET" else ""
        if name in self._files and name not in self._responses:
            self._responses[name] = _response(self._files[name])
        await self._responses.get(name, self.app)(scope, receive, send)


def _response(path: Path) -> Response:
    content = path.read_bytes()
    if path.name.startswith(CHARTS) and path.suffix == ".js":
        content = COMPILE_HINT + content
    return Response(content, media_type=mimetypes.guess_type(path.name)[0], headers=_HEADERS)
