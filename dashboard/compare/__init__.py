"""Compare: two models on the same pair."""
