"""Figures: styles, palettes, curves."""
