"""The page Cache and its commands."""
