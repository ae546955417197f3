"""Curves over relative position: resampling, averages with intervals, the matrix, maps."""
