"""Published: curves that others published."""
