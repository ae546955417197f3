"""Results as Parquet: export, import, merging of caches, part files."""
