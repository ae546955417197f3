"""Debias: how much position bias can be removed, and what it costs."""
