"""The token heatmap: panes of coloured text, in the page, as a file and as a picture.

`poslens.dashboard.widgets.heatmap` is not imported here, so that exports run without Streamlit.
"""

from poslens.heatmap.data import (
    Fact,
    Head,
    Level,
    Pane,
    Rail,
    Range,
    Special,
    View,
    pane,
    payload,
)
from poslens.heatmap.link import Link

__all__ = [
    "Fact",
    "Head",
    "Level",
    "Link",
    "Pane",
    "Rail",
    "Range",
    "Special",
    "View",
    "pane",
    "payload",
]
