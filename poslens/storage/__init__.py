"""Stored results: the Storage page's service, and the `cache` commands."""
