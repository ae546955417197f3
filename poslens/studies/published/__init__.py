"""The page Published."""
