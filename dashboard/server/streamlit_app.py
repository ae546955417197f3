"""The dashboard as a Streamlit app: its script, middleware, secrets and options."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from poslens.dashboard.server import fragment_queue, people
from poslens.dashboard.server.access import LOOPBACK, Access
from poslens.dashboard.server.access_middleware import AccessMiddleware
from poslens.dashboard.server.first_heatmap import FirstHeatmaps
from poslens.dashboard.server.responses import Headers, PageHead, RenamedPages
from poslens.dashboard.server.static_files import StaticFiles

SCRIPT = Path(__file__).parents[1] / "app.py"
MIDDLEWARE = (Headers, AccessMiddleware, StaticFiles, FirstHeatmaps, RenamedPages, PageHead)
"""What a request passes, in order, before Streamlit's own middleware."""

# By default, Streamlit shows paths of this machine in its error boxes.
_OPTIONS: Mapping[str, object] = {
    "server.headless": True,
    "server.fileWatcherType": "none",
    "server.maxUploadSize": 20,
    # A full garbage collection after each run traverses all objects of torch and Plotly, which
    # takes longer than drawing a page of stored results; Python's own schedule is sufficient.
    "runner.postScriptGC": False,
    # Don't draw bare expressions of a page's script, such as a constant's docstring.
    "runner.magicEnabled": False,
    # A page that opens with another page's choice sets widgets that have defaults; Streamlit would
    # log a stack trace.
    "global.disableWidgetStateDuplicationWarning": True,
    "browser.gatherUsageStats": False,
    "browser.serverAddress": LOOPBACK,
    # It would print `browser.serverAddress`, not the address that the server listens on.
    "logger.hideWelcomeMessage": True,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "minimal",
    "client.showSidebarNavigation": False,
    # For each theme separately: a color in [theme] would disable the user's choice of theme.
    "theme.light.primaryColor": "#0B6E99",
    "theme.dark.primaryColor": "#4FB3D9",
}


def dashboard_app(auth: Mapping[str, str], stopped: threading.Event) -> st.App:
    """The app; `auth` are the values of Streamlit's login, which stay in memory. `stopped` is set
    once the server has closed its connections after a signal."""

    @asynccontextmanager
    async def lifespan(app: st.App) -> AsyncIterator[None]:
        yield
        stopped.set()

    ask_no_internet_host()
    fragment_queue.install()
    return st.App(
        SCRIPT,
        secrets={"auth": dict(auth)} if auth else None,
        middleware=[Middleware(each) for each in MIDDLEWARE],
        lifespan=lifespan,
    )


def options(access: Access, port: int) -> dict[str, object]:
    """Streamlit's options for these access settings: by default, it would listen on every interface
    and accept any Host header."""
    users = json.dumps({access.user_header: people.NAME})
    return {
        **_OPTIONS,
        "server.address": access.host,
        "server.port": port,
        "server.allowedHosts": list(access.hosts),
        "server.baseUrlPath": access.base_path,
        **({"server.trustedUserHeaders": users} if access.proxies else {}),
    }


def ask_no_internet_host() -> None:
    """Patch Streamlit, which has no setting for this: for each request from a page of another site,
    it would ask an internet host for this machine's address, block all users meanwhile, and accept
    pages from the address it gets."""
    from streamlit import net_util

    net_util.get_external_ip = lambda: None
