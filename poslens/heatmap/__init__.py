"""The token heatmap, panes of colored text: its data, its browser code and its export.

The Streamlit component is `poslens.dashboard.widgets.heatmap`.
"""
