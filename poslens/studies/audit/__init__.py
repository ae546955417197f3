"""Audit: which sentences of a corpus do not retrieve their own document."""
