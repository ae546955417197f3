"""Jobs over a data set: claim, compute, store and resume, on this machine or on Ray."""
