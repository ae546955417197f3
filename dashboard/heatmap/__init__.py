"""The token heatmap: panes of coloured text, in the page, as a file and as a picture.

`dashboard.heatmap.component` is not imported here, so that exports run without Streamlit.
"""

from dashboard.heatmap.data import Aggregate, Level, Pane, Range, Special, View, pane, payload

__all__ = ["Aggregate", "Level", "Pane", "Range", "Special", "View", "pane", "payload"]
