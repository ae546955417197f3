"""Benchmarks of position that others published, by one command each."""
