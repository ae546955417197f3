"""Two retrievers with a planted position bias: ground truth for attribution."""
