"""Persistent cache of computed results, so that nothing is computed twice."""
