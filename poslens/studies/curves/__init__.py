"""The page Curves and its commands."""
