"""The queries of an audit: sentences and questions of documents, encoded block by block."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, cast

from torch import Tensor

from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.audit import DocumentQueries, Frequent, document_queries
from poslens.attribution.retrievers.base import Pooled, Retriever
from poslens.attribution.retrievers.lexical import LexicalRetriever
from poslens.attribution.retrievers.scoring import DeviceSlot, read_texts
from poslens.cache.jobs.loop import RunOptions
from poslens.studies.audit.index import of_readable

READ_AHEAD = 4096
"""Documents whose texts are read in one pass over the corpus."""


class Queries:
    """Queries of a block of documents: the sentences and questions of all of them are encoded
    together, in batches of similar length."""

    def __init__(
        self,
        retriever: Retriever,
        collection: Collection,
        frequent: Frequent,
        options: RunOptions,
        keys: Sequence[str],
    ) -> None:
        """`keys` are the documents' keys, in the order in which they will be requested."""
        self._retriever, self._reading = retriever, Reading(collection, keys)
        self._frequent, self._options = frequent, options
        self._of_document: dict[str, tuple[Document, DocumentQueries | UserError]] = {}
        self._vectors: dict[str, Any] = {}

    def prepare(self, keys: Sequence[str]) -> None:
        """Read the documents of these keys and encode their sentences and questions.

        Raises:
            Stopped: the run was stopped.
        """
        self._of_document = {key: self._queries_of(self._reading.take(key)) for key in keys}
        texts = [
            text
            for _, queries in self._of_document.values()
            if isinstance(queries, DocumentQueries)
            for text in (*queries.sentences, *queries.questions)
            if text
        ]
        try:
            self._vectors = self._encoded(list(dict.fromkeys(texts)), self._options.device_slot)
        except Stopped:
            raise
        except UserError:  # one of the documents fails: `of` determines which
            self._vectors = {}

    def of(self, key: str) -> tuple[Document, DocumentQueries, dict[str, Any]]:
        """A document of the block, its queries, and the vector [H] (or the words) of each query
        that the model can read. The caller holds the device slot.

        Raises:
            UserError: the document has no query that can be searched for.
        """
        document, queries = self._of_document[key]
        if isinstance(queries, UserError):
            raise queries
        texts = [text for text in (*queries.sentences, *queries.questions) if text]
        vectors = self._vectors or self._encoded(texts, nullcontext)
        if not any(text in vectors for text in texts):
            raise UserError(f"{self._retriever.name} can't read any sentence of the document.")
        return document, queries, vectors

    def _queries_of(self, document: Document) -> tuple[Document, DocumentQueries | UserError]:
        try:
            return document, document_queries(document, self._frequent)
        except UserError as reason:
            return document, reason

    def _encoded(self, texts: Sequence[str], device_slot: DeviceSlot) -> dict[str, Any]:
        if isinstance(self._retriever, LexicalRetriever):
            return {text: self._retriever.terms_of(text) for text in texts}
        retriever, stop = cast(Pooled, self._retriever), self._options.should_stop

        def encode(texts: Sequence[str]) -> dict[str, Any]:
            read = read_texts(retriever, texts, "query", should_stop=stop, device_slot=device_slot)
            return {
                text: vector
                for batch, output in read
                for text, vector in zip(batch, cast(Tensor, output).float().cpu(), strict=True)
            }

        return of_readable(encode, retriever, texts, "query")


class Reading:
    """Documents by key, requested in any order. Each pass over the corpus reads the next
    READ_AHEAD documents of that order."""

    def __init__(self, collection: Collection, keys: Sequence[str]) -> None:
        self._collection, self._keys = collection, keys
        self._number_of = {key: number for number, key in enumerate(keys)}
        self._ahead: dict[str, Document] = {}

    def take(self, key: str) -> Document:
        """The document with this key.

        Raises:
            UserError: it was removed from the corpus in the meantime.
        """
        if key not in self._ahead:
            first = self._number_of[key]
            keys = set(self._keys[first : first + READ_AHEAD])
            documents = (read for read in self._collection.documents() if read.key in keys)
            self._ahead = {read.key: read for read in islice(documents, len(keys))}
        if key not in self._ahead:
            raise UserError(
                f"The corpus no longer has the document {key[:80]}: start the audit again."
            )
        return self._ahead[key]
