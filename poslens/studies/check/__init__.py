"""Check: a model against a passport that was stored before."""
