"""The token heatmap as an anywidget, for notebooks that show widgets. It runs the dashboard's
browser code, needs the extra `notebook`, and loads nothing from a network."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from poslens.heatmap.assets import drawing_script, source, styles


class Heatmap(anywidget.AnyWidget):
    """A heatmap of a query and a document for each model, drawn by the browser.

    `data` is the result of `poslens.heatmap.data.payload`. `pinned` has a dictionary for each unit
    that the user pinned: `model`, `side` ("query" or "document"), `start` and `end` in characters
    of that text, and `text`. Units can be pinned only if the results link query and document, such
    as those of `decomposition` with `matrix="yes"`. The browser writes the list, and Python can
    observe it:

        widget.observe(lambda change: print(change["new"]), "pinned")
    """

    _esm = f"{drawing_script()}\n{source('widget.js')}"
    _css = f"{styles()}\n{source('widget.css')}"
    data = traitlets.Dict().tag(sync=True)
    pinned: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
