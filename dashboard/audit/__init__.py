"""Audit: what an index can't retrieve, and how to chunk its documents."""
