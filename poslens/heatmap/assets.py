"""The heatmap's browser code, read once from the files in this folder."""

from __future__ import annotations

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


def _read(name: str) -> str:
    return files("poslens.heatmap").joinpath(name).read_text(encoding="utf-8")


@cache
def drawing_script() -> str:
    """One script that defines `renderHeatmap` and `heatmapToSvg`.

    Its files share one scope and import nothing, so that the Streamlit component and the widget
    (modules) and the standalone page (a classic script) can all include it.
    """
    return "\n".join(_read(name) for name in _DRAWING)


@cache
def component_script() -> str:
    """The module for st.components.v2: the drawing code with a default export."""
    return f"{drawing_script()}\n{_read('streamlit.js')}"


@cache
def widget_script() -> str:
    """The module for anywidget: the drawing code with a default export."""
    return f"{drawing_script()}\n{_read('widget.js')}"


@cache
def styles() -> str:
    """The heatmap's style sheet, for pages, files and notebooks."""
    return _read("heatmap.css")


@cache
def widget_styles() -> str:
    """The heatmap's style sheet in the colors of a notebook."""
    return f"{styles()}\n{_read('widget.css')}"
