"""Widgets that several pages show."""
