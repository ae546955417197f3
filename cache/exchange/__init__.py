"""Parquet in and out: export, import, merge, part files."""
