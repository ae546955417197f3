"""Two retrievers whose positional bias was put there on purpose: ground truth for attribution."""
