"""Why a document was not retrieved for a query."""
