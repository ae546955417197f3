"""What was computed stays computed."""
