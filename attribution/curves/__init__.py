"""Curves over relative position: resampling, averages with intervals, matrices and maps."""
