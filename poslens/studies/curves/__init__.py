"""Mean attribution curves over data sets: the commands `precompute` and `curve`."""
