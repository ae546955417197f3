"""Maintenance of stored results: the service of the Storage page, and the `cache` commands."""
