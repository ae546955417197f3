"""Nouns that tell texts of one pattern apart, in data sets that tests write."""

_LINE = "ice stone fog salt iron moss sand rain wool clay rope jam"
NOUNS = tuple(_LINE.split())
