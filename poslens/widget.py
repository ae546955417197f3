"""The token heatmap as an anywidget: the browser code of the dashboard's own, for notebooks that
show widgets. Needs the extra `notebook`; asks nothing of a network."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from poslens.heatmap.assets import widget_script, widget_styles


class Heatmap(anywidget.AnyWidget):
    """A query and a document for each model, drawn by the browser.

    `data` is what `poslens.heatmap.data.payload` gives. `pinned` holds a dictionary for each unit
    that the reader has pinned: `model`, `side` ("query" or "document"), `start` and `end` in
    characters of that text, and `text`. Only results that link query and document, such as
    those of `decomposition` with `matrix="yes"`, let units be pinned; the browser writes the
    list and Python reads it:

        widget.observe(lambda change: print(change["new"]), "pinned")
    """

    _esm = widget_script()
    _css = widget_styles()
    data = traitlets.Dict().tag(sync=True)
    pinned: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
