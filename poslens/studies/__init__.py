"""One package for each question that can be asked of models and a data set."""
