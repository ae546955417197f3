"""Within-query position effect: the rank of a document by where its evidence is."""
