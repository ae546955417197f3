"""Curves: attribution by position, averaged over a data set."""
