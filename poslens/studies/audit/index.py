"""Indexes of a corpus, vectors or words of documents that are computed once and stored, and the
queries of an audit that search them, encoded block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.errors import RunEnded, UserError
from poslens.attribution.evaluation.audit import (
    DocumentQueries,
    Frequent,
    Order,
    document_queries,
    shuffled,
)
from poslens.attribution.evaluation.chunks import (
    Chunks,
    excludes_prompt,
    late_vectors,
    windows_of,
)
from poslens.attribution.evaluation.document_index import Ints, LexicalIndex, Ranks, VectorIndex
from poslens.attribution.evaluation.scorers import readable
from poslens.attribution.retrievers.base import Pooled, Retriever
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.lexical import LexicalRetriever
from poslens.attribution.retrievers.scoring import DeviceSlot, in_batches, read_texts
from poslens.attribution.types import Array, Method, Side
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import text_digest
from poslens.cache.kinds.chunk_plan import ChunkVectors, late_chunks
from poslens.cache.kinds.embeddings import EmbeddingStore, embedded
from poslens.cache.storage.store import ModelKey

T = TypeVar("T")

CPU_BLOCK, BLOCK = 16, 256
"""Number of documents whose texts are in memory at a time. After each block a run reports progress
and can be stopped. Batches on a CPU are small, so 16 documents fill several of similar length."""


def of_readable(
    encode: Callable[[Sequence[str]], T], retriever: Pooled, texts: Sequence[str], side: Side
) -> T:
    """`encode` of the texts or, if it fails, of those that the model can read.

    Raises:
        UserError: the model can read all of them, and `encode` fails.
    """
    try:
        return encode(texts)
    except RunEnded:
        raise
    except UserError:
        ok = readable(retriever, texts, side)
        if all(ok):
            raise
    return encode(list(compress(texts, ok)))


@dataclass(frozen=True)
class TextEncoder:
    """A loaded model in a run, which encodes each text once: vectors are stored below `root`."""

    root: Path
    retriever: Retriever
    model: ModelKey
    options: RunOptions

    @property
    def block_size(self) -> int:
        """Number of documents to read at a time."""
        return CPU_BLOCK if self.retriever.device.type == "cpu" else BLOCK

    def vectors(self, side: Side, texts: Sequence[str]) -> tuple[dict[str, Tensor], int]:
        """The vector [H] of each text that the model can read, and how many were computed.

        Raises:
            Stopped: the run was stopped; vectors computed so far are stored.
            UserError: a vector cannot be computed or stored.
        """
        retriever, store = cast(Pooled, self.retriever), EmbeddingStore(self.root)

        def encode(texts: Sequence[str]) -> tuple[dict[str, Array], int]:
            return embedded(retriever, self.model, side, texts, store, self.options)

        vectors, computed = of_readable(encode, retriever, texts, side)
        tensors = {text: torch.from_numpy(vector.copy()) for text, vector in vectors.items()}
        return tensors, computed


SearchIndex: TypeAlias = VectorIndex | LexicalIndex
"""An index that ranks each query's own document; queries are vectors or words."""


def ranks_of(
    index: SearchIndex, queries: Mapping[str, Any], asked: Sequence[tuple[str, int]]
) -> Ints:
    """The rank of each document, given by number, for its text [P]; 0 for a text that is not among
    `queries` (vectors [H] or words by text) because the model cannot read it."""
    ranks = np.zeros(len(asked), dtype=np.int64)
    at = [i for i, (text, _) in enumerate(asked) if text in queries]
    if at:
        encoded: Any = [queries[asked[i][0]] for i in at]
        if isinstance(index, VectorIndex):
            encoded = torch.stack(encoded)
        ranks[at] = index.ranks(encoded, [asked[i][1] for i in at])
    return ranks


class IndexBuilder:
    """Builds the indexes of a collection for one model; with `titled`, windows begin with the title
    of their document."""

    def __init__(
        self, encoder: TextEncoder, collection: Collection, chunks: Chunks, *, titled: bool = False
    ) -> None:
        self._encoder, self._collection = encoder, collection
        self._retriever, self._options = encoder.retriever, encoder.options
        self._chunks, self._titled = chunks, titled
        self._from_store = True

    def index(self, order: Order, total: int) -> SearchIndex:
        """The index of the corpus of `total` documents, with their sentences in this order.

        Raises:
            Stopped: the run was stopped; vectors computed so far are stored.
            UserError: the corpus cannot be read.
        """
        columns: list[int] = []
        same: list[int] = []
        chunks: list[Any] = []
        first_of: dict[str, int] = {}
        computed, seconds = 0, 0.0
        for block in self._blocks(order):
            checkpoint()
            started, self._from_store = time.perf_counter(), True
            new: dict[int, tuple[str, str]] = {}
            for text, title in block:
                number = first_of.setdefault(text_digest(text), len(same))
                if number == len(same):
                    new[number] = text, title
                same.append(number)
            for number, parts in zip(new, self._chunked(list(new.values())), strict=True):
                chunks += parts
                columns += [number] * len(parts)
            # Blocks read from the store would make the estimate too optimistic.
            if not self._from_store:
                computed, seconds = computed + len(block), seconds + time.perf_counter() - started
            self._options.on_progress(Progress(total, len(same), computed, 0, seconds))
        if not columns:
            raise UserError(f"{self._retriever.name} can't read any document of the corpus.")
        ranks = Ranks(columns, same)
        if isinstance(self._retriever, LexicalRetriever):
            return LexicalIndex(chunks, ranks, self._retriever.k1, self._retriever.b)
        pooled = cast(Pooled, self._retriever)
        return VectorIndex(torch.stack(chunks), ranks, pooled.similarities)

    def _blocks(self, order: Order) -> Iterator[list[tuple[str, str]]]:
        """Texts with the titles that their windows get."""
        documents = self._collection.documents()
        while block := list(islice(documents, self._encoder.block_size)):
            yield [
                (
                    document.text if order == "original" else shuffled(document),
                    document.title if self._titled else "",
                )
                for document in block
            ]

    def _chunked(self, block: Sequence[tuple[str, str]]) -> list[list[Any]]:
        """The entries of each text in the index: vectors [H], or words."""
        if self._chunks.kind == "late":
            return [list(values) for values in self._late([text for text, _ in block])]
        parts = [
            windows_of(self._retriever, text, self._chunks, title)
            if self._chunks.kind == "windows"
            else [text]
            for text, title in block
        ]
        if isinstance(self._retriever, LexicalRetriever):
            return [[self._retriever.terms_of(part) for part in texts] for texts in parts]
        different = list(dict.fromkeys(part for texts in parts for part in texts))
        arrays, computed = self._encoder.vectors("document", different)
        self._from_store = self._from_store and not computed
        return [[arrays[part] for part in texts if part in arrays] for texts in parts]

    def _late(self, texts: Sequence[str]) -> list[Tensor]:
        """Vectors [W, H] of each text's late chunks; W is 0 if the model cannot read the text."""
        retriever, model = cast(DenseRetriever, self._retriever), self._encoder.model
        store = late_chunks(self._encoder.root)
        # Version 2: no token of a chunk is missing if pooling excludes the prompt.
        version = 2 if excludes_prompt(retriever) else 1
        method = Method("late_chunks", {"size": self._chunks.size, "version": version})
        digest_of = {text: text_digest(text) for text in texts}
        stored = store.select(model, method, list(digest_of.values())).results
        arrays = {
            digest: torch.from_numpy(chunk_vectors.vectors.copy())
            for digest, chunk_vectors in stored.items()
            if chunk_vectors.width == retriever.width
        }

        def read(part: list[str]) -> list[Tensor]:
            return late_vectors(retriever, part, self._chunks.size)

        todo = [text for text in texts if digest_of[text] not in arrays]
        todo = list(compress(todo, readable(retriever, todo, "document"))) if todo else []
        for part, columns in in_batches(
            retriever, read, todo, estimated_tokens, self._options.device_slot
        ):
            self._from_store = False
            vectors = {digest_of[text]: values for text, values in zip(part, columns, strict=True)}
            rows = [
                (digest, ChunkVectors(values.shape[1], values.numpy()))
                for digest, values in vectors.items()
            ]
            store.put(model, method, rows)
            arrays |= vectors
        return [arrays.get(digest_of[text], torch.zeros(0, 1)) for text in texts]


# -- queries ---------------------------------------------------------------------------------------

READ_AHEAD = 4096
"""Documents whose texts are read in one pass over the corpus."""


class Queries:
    """Queries of a block of documents: the sentences and questions of all of them are encoded
    together, in batches of similar length."""

    def __init__(
        self, encoder: TextEncoder, collection: Collection, frequent: Frequent, keys: Sequence[str]
    ) -> None:
        """`keys` are the documents' keys, in the order in which they will be requested."""
        self._retriever, self._options = encoder.retriever, encoder.options
        self._reading, self._frequent = Reading(collection, keys), frequent
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
        except RunEnded:
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
        retriever = cast(Pooled, self._retriever)

        def encode(texts: Sequence[str]) -> dict[str, Any]:
            read = read_texts(retriever, texts, "query", device_slot=device_slot)
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
