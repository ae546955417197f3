"""Audit: what an index cannot retrieve, and how to chunk its documents."""
