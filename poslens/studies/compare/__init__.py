"""Comparison of models: the command `compare` on one pair, and the study `differences`."""
