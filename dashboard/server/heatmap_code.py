"""Serves the heatmap's script and style as one file, which browsers keep: sent with the component,
they would come again with every click."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poslens.heatmap.assets import page_module, page_module_name

_HEADERS = {"cache-control": "public, max-age=31536000, immutable"}


async def _answer(request: Request) -> Response:
    return Response(page_module(), media_type="text/javascript", headers=_HEADERS)


def heatmap_code(base_path: str = "") -> Route:
    """The route of the file, in the folder of the pages: below `base_path`."""
    folder = base_path.strip("/")
    return Route(f"/{folder}/{page_module_name()}".replace("//", "/"), _answer)
