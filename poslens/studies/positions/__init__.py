"""The study `positions`: the rank of a document by the position of its evidence."""
