"""Check: compares a model with a stored passport."""
