"""Debias: how much position bias calibrated attention removes, and what it costs."""
