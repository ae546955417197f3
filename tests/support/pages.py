"""Where the pages' files are, and how a test opens them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from poslens.dashboard.explain import view

# No browser draws these pages, so there is nothing to wait for.
view.PAUSE_S = view.FIRST_PAUSE_S = 0.0
# Each page would search the metadata of all installed packages again, for 0.2 seconds.
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "dashboard"
SECONDS = 300
"""Timeout of a page's run: one second can become a minute on a slow and busy machine."""


def page_file(name: str) -> Path:
    """The file of a page by its name in the address."""
    return DASHBOARD / name / "page.py"


def page_files() -> dict[str, Path]:
    """Every page's file by its folder's name."""
    return {path.parent.name: path for path in sorted(DASHBOARD.glob("*/page.py"))}


def open_page(name: str, **query: Any) -> AppTest:
    """A page within the whole app, as opened by an address with this query; not run yet."""
    app = AppTest.from_file(str(DASHBOARD / "app.py"), default_timeout=SECONDS)
    # `switch_page` knows pages by their file names until the app has run once; a first run would
    # open Explain and compute a pair.
    app._page_hash = calc_hash(name)
    for key, value in query.items():
        app.query_params[key] = value
    return app


def heatmap_panes(page: AppTest) -> list[dict[str, Any]]:
    """The panes of the token heatmap; empty without a heatmap."""
    drawn = [json.loads(element.proto.json) for element in page.get("bidi_component")]
    return [pane for data in drawn for pane in data.get("panes", [])]


def shown_scores(page: AppTest) -> list[float]:
    """The score above each column of the token heatmap; empty without a heatmap."""
    heads = [pane["head"] for pane in heatmap_panes(page) if pane.get("head")]
    return [float(head["score"].replace("−", "-")) for head in heads]
