"""Storage: the contents of the cache; export, import, verify or delete them."""
