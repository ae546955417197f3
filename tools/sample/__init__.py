"""Build the bundled data sets from their sources."""
