"""Plotly figures, and their styles and palettes."""
