"""The Explain page: the attribution of one pair's score."""
