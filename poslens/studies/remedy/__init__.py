"""Remedy: what calibrated attention does to a model's position bias, and at what price."""
