"""The Storage page: maintenance of stored results."""
