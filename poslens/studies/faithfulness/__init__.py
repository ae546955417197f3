"""Faithfulness tests: the first two tabs of the page Methods."""
