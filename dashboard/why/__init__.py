"""The Why page: why documents are not retrieved."""
