"""The heatmap's browser code, read once from the files in this folder."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files

_DRAWING = (
    "numbers.js",
    "scales.js",
    "link.js",
    "largest.js",
    "paint.js",
    "heatmap.js",
    "columns.js",
    "interaction.js",
    "places.js",
    "rail.js",
    "svg.js",
    "rail_svg.js",
)


def source(name: str) -> str:
    """The text of a file in this folder."""
    return files("poslens.heatmap").joinpath(name).read_text(encoding="utf-8")


@cache
def drawing_script() -> str:
    """One script that defines `renderHeatmap` and `heatmapToSvg`.

    Its files share one scope and import nothing, so that the dashboard and the widget (modules) and
    the standalone page (a classic script) can all include it.
    """
    return "\n".join(map(source, _DRAWING))


def component_script() -> str:
    """The module for st.components.v2, which Streamlit sends with every change of a heatmap: it
    imports `page_module`, which the browser keeps."""
    return f"const CODE = {json.dumps(page_module_name())};\n{source('streamlit.js')}"


@cache
def page_module() -> str:
    """The module that pages of the dashboard import: the drawing code, and `styles` as text."""
    exported = f"export {{ renderHeatmap }};\nexport const styles = {json.dumps(styles())};\n"
    return f"{drawing_script()}\n{exported}"


@cache
def page_module_name() -> str:
    """The file name of `page_module` in the folder of the pages, with a digest of its contents, so
    that browsers can keep it forever."""
    return f"heatmap-{hashlib.sha256(page_module().encode()).hexdigest()[:16]}.js"


@cache
def styles() -> str:
    """The heatmap's style sheet, for pages, files and notebooks."""
    return source("heatmap.css")
