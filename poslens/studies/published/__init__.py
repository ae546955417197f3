"""Published curves and measures, which Curves, Compare and Ranking show."""
