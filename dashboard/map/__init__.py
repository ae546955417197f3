"""The Map page: documents, queries or curves of a data set as points, similar ones close
together."""
