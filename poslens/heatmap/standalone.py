"""The token heatmap as a file: a self-contained HTML page, or a picture of it."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poslens.export.inscription import inscribed
from poslens.export.json_text import script_json
from poslens.figures.palettes import Style
from poslens.heatmap.assets import drawing_script, styles
from poslens.heatmap.data import Pane, View, payload

if TYPE_CHECKING:
    from poslens.export.browser import Page

Provenance = Sequence[Mapping[str, Any]]
"""One mapping of names to values for each model in the picture (`Provenance.entry`)."""

TITLE = "PosLens token heatmap"

# The colors of Streamlit's two themes, so that an export looks like the page.
_THEMES = {
    "light": "--st-background-color:#ffffff;--st-text-color:#1f2328;--st-primary-color:#1a66b3",
    "dark": "--st-background-color:#0e1117;--st-text-color:#ececec;--st-primary-color:#79b8ff",
}
_PAGE = """
body { margin: 0; background: var(--st-background-color); color: var(--st-text-color); }
main { max-width: 1600px; margin: 0 auto; padding: 24px; }
h1 { font: 600 20px/1.3 system-ui, sans-serif; margin: 0 0 16px; }
#provenance-table { font: 13px/1.5 system-ui, sans-serif; border-collapse: collapse; }
#provenance-table caption { text-align: start; font-weight: 600; padding: 8px 0 4px; }
#provenance-table th { text-align: start; font-weight: 400; padding: 1px 24px 1px 0;
  vertical-align: top; white-space: nowrap; opacity: 0.75; }
#provenance-table td { overflow-wrap: anywhere; }
"""
_START = """
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const settings = read("heatmap-data");
const root = document.getElementById("heatmap");
root.style.setProperty("--hm-font", settings.font);
root.style.setProperty("--hm-size", settings.size);
renderHeatmap(root, settings.data, (view) => { window.view = view; });
window.poslensSvg = () => heatmapToSvg(root);
"""


def to_html(panes: Sequence[Pane], view: View, provenance: Provenance, style: Style) -> str:
    """A self-contained HTML page of the heatmap with its toggles and its provenance, in the theme
    and the font of `style`."""
    size = f"{style.font_size}px"
    settings = {"data": payload(panes, view), "font": style.font_family, "size": size}
    script = f"(() => {{\n{drawing_script()}\n{_START}}})();"
    colors = f":root {{ {_THEMES[style.theme]}; color-scheme: {style.theme} }}"
    css = f"{colors}\n{_PAGE}\n{styles()}"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(css)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name.replace("_", " "))}</th>'
        f'<td dir="auto">{html.escape(str(value))}</td></tr>'
        for entry in provenance
        for name, value in entry.items()
    )
    entries = script_json([dict(entry) for entry in provenance])
    # The policy allows only this script and this style, so that nothing in the texts can run.
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(_title(panes))}</title>
<style>{css}</style>
</head>
<body>
<main>
<h1>Token heatmap</h1>
<div id="heatmap"></div>
<table id="provenance-table"><caption>Provenance</caption><tbody>{rows}</tbody></table>
</main>
<script type="application/json" id="heatmap-data">{script_json(settings)}</script>
<script type="application/json" id="provenance">{entries}</script>
<script>{script}</script>
</body>
</html>
"""


def to_image(
    panes: Sequence[Pane],
    view: View,
    provenance: Provenance,
    style: Style,
    format: str = "svg",
) -> bytes:
    """The bytes of a picture of the heatmap (svg, png or pdf) with complete documents, drawn by a
    headless browser.

    It has the width of `style`, at least 360 px. The resolution of a PNG is reduced if the picture
    would exceed the browser's maximum. The file contains the provenance as a figure does
    (`poslens.export.files`).

    Raises:
        UserError: there is no browser, or it takes too long.
    """
    from poslens.export.browser import MAX_PIXELS, in_page  # here: slow to import

    page = to_html(panes, view, provenance, style)
    title, entries = _title(panes), [dict(entry) for entry in provenance]

    async def draw(tab: Page) -> bytes:
        # main has a padding of 24 px and the picture a margin of 16
        await tab.show(page, max(360, style.width_px) + 2 * 24 - 2 * 16, 900)
        svg = str(await tab.evaluate("window.poslensSvg()"))
        if format == "svg":
            return svg.encode()
        width, height = _svg_size(svg)
        dots = 1.0 if format == "pdf" else min(style.scale, MAX_PIXELS / max(width, height))
        await tab.show(_picture_page(svg, title, style.theme), width, height, dots)
        return await (tab.pdf if format == "pdf" else tab.screenshot)(width, height)

    image = inscribed(in_page(draw), format, title, entries)
    if format == "svg":
        return b'<?xml version="1.0" encoding="UTF-8"?>\n' + image + b"\n"
    return image


def _title(panes: Sequence[Pane]) -> str:
    models = list(dict.fromkeys(pane.model for pane in panes))
    return f"{TITLE} · {', '.join(models)}"


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _svg_size(svg: str) -> tuple[int, int]:
    match = re.match(r'<svg [^>]*?width="(\d+)" height="(\d+)"', svg)
    if match is None:
        raise ValueError("the page gave no SVG")
    return int(match[1]), int(match[2])


def _picture_page(svg: str, title: str, theme: str) -> str:
    # `display: block` and no margin: the page is the picture. The background is seen in the last
    # row of dots, which the picture may cover in part.
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'unsafe-inline'\"><style>:root{{{_THEMES[theme]}}}"
        "html,body{margin:0;padding:0;background:var(--st-background-color)}svg{display:block}"
        "@page{margin:0}</style></head>"
        f"<body>{svg}</body></html>"
    )
