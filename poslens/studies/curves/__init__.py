"""Mean attribution curves over data sets: the commands `precompute`, `failures` and `curve`."""
