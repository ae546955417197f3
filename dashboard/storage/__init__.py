"""Storage: what the cache holds; export, import, verify or delete it."""
