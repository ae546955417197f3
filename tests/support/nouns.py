"""Nouns that distinguish texts with the same pattern, in data sets written by tests."""

_LINE = "ice stone fog salt iron moss sand rain wool clay rope jam"
NOUNS = tuple(_LINE.split())
