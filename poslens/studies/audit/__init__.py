"""Audit: which passages of a corpus its own index cannot find."""
