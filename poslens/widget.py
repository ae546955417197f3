"""The token heatmap as an anywidget, for notebooks that show widgets. It runs the dashboard's
browser code, needs the extra `notebook`, and loads nothing from a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    `html` returns the heatmap as HTML, for what shows no widgets, such as an exported notebook.
    """

    _esm = f"{drawing_script()}\n{source('widget.js')}"
    _css = f"{styles()}\n{source('widget.css')}"
    data = traitlets.Dict().tag(sync=True)
    pinned: traitlets.List[dict[str, Any]] = traitlets.List(read_only=True).tag(sync=True)

    def __init__(self, data: Mapping[str, Any], html: Callable[[], str]) -> None:
        self._html = html
        super().__init__(data=data)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if (bundle := super()._repr_mimebundle_(**kwargs)) is None:
            return None
        formats, metadata = bundle
        return {**formats, "text/html": self._html()}, metadata
