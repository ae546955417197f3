"""Published curves and measures, shown by the pages Curves, Compare and Ranking."""
