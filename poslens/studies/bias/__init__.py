"""The study `bias`: which of two documents a model prefers, all else equal."""
