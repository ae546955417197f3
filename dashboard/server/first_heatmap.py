"""Tells a page's script when a browser tab has drawn its first heatmap.

The first chart of a tab loads Plotly's script, which blocks the page for about a second, so it must
not arrive before the heatmap is on screen. A component's state would not do: it reaches the script
only after the script has ended.
"""

from __future__ import annotations

import secrets
import threading
from weakref import WeakValueDictionary

import streamlit as st
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from poslens.dashboard.server import access

FOLDER = "drawn/"
"""Folder of the addresses that browsers request, relative to the pages."""
_KEY = "heatmap.first"


class FirstHeatmap:
    """The first heatmap of a browser tab."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe()
        self.drawn = threading.Event()


_tabs: WeakValueDictionary[str, FirstHeatmap] = WeakValueDictionary()  # by token


def of_tab() -> FirstHeatmap:
    """The first heatmap of the tab whose script calls this."""
    first: FirstHeatmap | None = st.session_state.get(_KEY)
    if first is None:
        first = st.session_state[_KEY] = FirstHeatmap()
        _tabs[first.token] = first
    return first


def address() -> str:
    """What the browser requests once the heatmap is on screen, relative to the page; empty if the
    tab has drawn one before."""
    first = of_tab()
    return "" if first.drawn.is_set() else FOLDER + first.token


class FirstHeatmaps:
    """Answers requests for addresses of `FOLDER`; `app` answers all others."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._folder = access.current.root + FOLDER

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._folder):
            await self.app(scope, receive, send)
            return
        first = _tabs.get(scope["path"].removeprefix(self._folder))
        if first is not None:
            first.drawn.set()
        await Response(status_code=204 if first else 404)(scope, receive, send)
