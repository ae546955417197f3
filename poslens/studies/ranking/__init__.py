"""The page Ranking and its command."""
