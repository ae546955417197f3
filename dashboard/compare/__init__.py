"""The Compare page: two models on the same pair or data set."""
