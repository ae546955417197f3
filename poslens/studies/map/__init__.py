"""Maps of a data set's texts or curves in two dimensions."""
