"""The study `preferences`: which position an attribution method itself prefers."""
