"""Builds the embedded data sets from their sources."""
