"""The study `why`: why a document was not retrieved for a query."""
