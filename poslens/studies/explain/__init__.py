"""The page Explain and its command."""
