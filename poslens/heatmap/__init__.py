"""The token heatmap, panes of colored text: its data, its browser code and its export.

The Streamlit component is `poslens.dashboard.widgets.heatmap`.
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
