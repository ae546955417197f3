"""Kinds of results other than attributions, one module each."""
