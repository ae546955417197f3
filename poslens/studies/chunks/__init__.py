"""The study `chunks`: which window, overlap and title prefix an index should use."""
