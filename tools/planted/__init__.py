"""Trains and measures the adapters with a planted bias."""
