"""The page Bias tests and its command."""
