"""Map: similar documents, queries or curves, close together on a plane."""
