"""Files that carry their provenance, and the browser that draws them."""
