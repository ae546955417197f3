"""Interfaces of retrievers: what methods require, for any family.

A retriever tokenizes both texts, computes the score from the input embeddings of one side while the
other is constant and, in families whose score is a sum, returns the terms of the sum.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeGuard, cast

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import MAX_CHARACTERS
from poslens.attribution.types import Array, Side, TextPair, TokenizedText


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch of B tokenized texts.

    `features` are the model's inputs, tensors [B, T] on its device. `texts[b]` are the tokens of
    row b without padding, which begin at position `offsets[b]`: 0 if padding is on the right.
    `side` selects the encoder, if queries and documents have separate ones.
    """

    features: dict[str, Any]
    texts: tuple[TokenizedText, ...]
    offsets: tuple[int, ...]
    side: Side = "document"

    def repeated(self, n: int) -> Encoded:
        """This batch of one text, repeated n times, for inputs that vary while the text does
        not."""
        return self.picked([0] * n)

    def picked(self, rows: Sequence[int]) -> Encoded:
        """A batch of these rows, which can repeat."""
        features = each_tensor(self.features, lambda values: values[list(rows)])
        texts = tuple(self.texts[b] for b in rows)
        return Encoded(features, texts, tuple(self.offsets[b] for b in rows), self.side)

    def span(self, b: int) -> slice:
        """The positions of row b's tokens, without padding."""
        return slice(self.offsets[b], self.offsets[b] + len(self.texts[b]))

    def row(self, values: Tensor, b: int) -> Tensor:
        """The part of row b of `values` [B, T, ...] that belongs to its tokens."""
        return values[b, self.span(b)]


def each_tensor(features: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """`features` with `change` applied to the tensors among them."""
    return {
        key: change(value) if isinstance(value, Tensor) else value
        for key, value in features.items()
    }


@dataclass(frozen=True, slots=True)
class LibraryCheck:
    """Result of the self-check against `library`: the relative distance of the embedding, or of the
    score, of a short pair."""

    distance: float
    compared: Literal["embedding", "score"]
    library: str = "sentence-transformers"

    @classmethod
    def of_score(
        cls, score: float, expected: float, least: float, library: str = "sentence-transformers"
    ) -> LibraryCheck:
        """The distance of a score from the library's, `expected`, relative to the magnitude of the
        latter, or to `least` if that is larger."""
        return cls(abs(score - expected) / max(abs(expected), least), "score", library)


Representation = Any
"""A text's representation in a family, which its `similarity` compares: a vector, token vectors, or
term weights. Untyped, because only the family itself reads it."""


class Retriever(Protocol):
    """Interface of every family. Hold `lock` while the model runs. Tokenizing needs no lock, and
    doesn't wait until the model is free."""

    family: str
    name: str
    spec: RetrieverSpec
    precision: str
    lock: threading.RLock

    @property
    def device(self) -> torch.device:
        """The device that the model runs on."""

    @property
    def max_length(self) -> int:
        """Context limit for documents in tokens, including special tokens."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from the library's own result for the pair."""


class Embedded(Retriever, Protocol):
    """A retriever whose score is a function of its input embeddings."""

    def input_embeddings(self, encoded: Encoded) -> Tensor:
        """Word embeddings [B, T, H] before positions are added; detached."""

    def baseline(self, encoded: Encoded) -> Tensor:
        """Word embeddings with padding in place of every text token; special tokens stay."""

    def override_embeddings(self, inputs: Tensor) -> AbstractContextManager[None]:
        """Context in which the model uses `inputs` [B, T, H] as its word embeddings."""

    def embed(self, encoded: Encoded) -> Representation:
        """The representation to compare with the other side; for joint models the scores [B]."""


class Separate(Embedded, Protocol):
    """Query and document are encoded separately and compared afterwards."""

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        """Tokenize texts of one side."""

    def encode_plain(self, texts: Sequence[str], side: Side) -> Encoded:
        """Tokenize for `embed` only, possibly without `Token` columns."""

    def similarity(self, queries: Representation, documents: Representation) -> Tensor:
        """Scores [B] of the representations of both sides."""


class Pooled(Separate, Protocol):
    """Each text becomes one vector."""

    @property
    def width(self) -> int:
        """Number of dimensions of a vector, H."""

    def max_length_of(self, side: Side) -> int:
        """Context limit for one side in tokens, including special tokens."""

    def similarities(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [P, C] of every query [P, H] with every document [C, H]."""

    def directions(self, vectors: Tensor) -> Tensor:
        """Vectors [B, H] scaled so that the score is the inner product of two rows.

        Raises:
            UserError: the model's similarity is not an inner product.
        """


class Joint(Embedded, Protocol):
    """Query and document are read together, as parts of one sequence."""

    def encode_pairs(self, pairs: Sequence[TextPair]) -> tuple[Encoded, Encoded]:
        """Query and document of each pair; the two share their features [B, T]."""


@dataclass(frozen=True, slots=True)
class ExactScore:
    """A score that is a sum over pairs of a query and a document token: `matrix` [Q, D].
    `similarities` [Q, D] are all compared values, if the sum contains only some of them."""

    query: TokenizedText
    document: TokenizedText
    score: float
    matrix: Array
    similarities: Array | None = None


class Additive(Retriever, Protocol):
    """The score is a sum over pairs of tokens."""

    def exact(
        self, queries: Sequence[str], documents: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> Iterator[ExactScore]:
        """The score of each pair (indices of a query and a document) as a sum over pairs of tokens;
        each text is read once."""


class WordInputs:
    """Words as the inputs of a model that reads texts: the "input embedding" of a word is 1 if it
    is in the text and 0 if it is removed, so code that perturbs embeddings works on texts."""

    device = torch.device("cpu")
    max_length = MAX_CHARACTERS  # no context limit, or an unknown one
    input_type = torch.float32

    def __init__(self, spec: RetrieverSpec) -> None:
        self.spec, self.name, self.family = spec, spec.name, spec.family
        self.lock = threading.RLock()
        self._read: Tensor | None = None

    def input_embeddings(self, encoded: Encoded) -> Tensor:
        """A one for each word [B, T, 1]."""
        width = max(len(text) for text in encoded.texts)
        return torch.ones(len(encoded.texts), width, 1, dtype=self.input_type)

    def baseline(self, encoded: Encoded) -> Tensor:
        """A zero for each word [B, T, 1]."""
        return torch.zeros_like(self.input_embeddings(encoded))

    @contextmanager
    def override_embeddings(self, inputs: Tensor) -> Iterator[None]:
        """Context in which texts are read without the words that are 0 in `inputs` [B, T, 1]."""
        self._read = inputs
        try:
            yield
        finally:
            self._read = None


def reads_jointly(retriever: Retriever) -> TypeGuard[Joint]:
    """Whether query and document are read together."""
    return hasattr(retriever, "encode_pairs")


def is_pooled(retriever: Retriever) -> TypeGuard[Pooled]:
    """Whether each text becomes one vector."""
    return hasattr(retriever, "similarities")


def embedded(retriever: Retriever) -> Embedded:
    """The retriever, typed as one with input embeddings.

    Raises:
        UserError: its family lacks `Capability.REMOVAL`.
    """
    if not hasattr(retriever, "embed"):
        raise UserError(
            f"{retriever.name} only splits the score of a pair into terms, so it can't rank, "
            "change or read single texts: choose another model."
        )
    return cast(Embedded, retriever)


def tokenizer_lock(lock: threading.RLock, device: torch.device) -> threading.RLock:
    """The lock for tokenizing and for moving tokens to the device. It is separate from the model's
    `lock`, so that pages that only tokenize do not wait for a batch; except on Apple GPUs, which
    PyTorch can use from only one thread at a time."""
    return lock if device.type == "mps" else threading.RLock()


def separate(retriever: Retriever) -> Separate:
    """The retriever, typed as one that encodes texts separately.

    Raises:
        UserError: as `embedded`.
    """
    return cast(Separate, embedded(retriever))


def encode(retriever: Retriever, pairs: Sequence[TextPair]) -> tuple[Encoded, Encoded]:
    """Query and document side of a batch of pairs."""
    if reads_jointly(retriever):
        return retriever.encode_pairs(pairs)
    apart = separate(retriever)
    return (
        apart.encode_texts([pair.query for pair in pairs], "query"),
        apart.encode_texts([pair.document for pair in pairs], "document"),
    )


def constant_side(retriever: Embedded, encoded: Encoded) -> Representation:
    """The representation of a side that stays constant; detached."""
    if reads_jointly(retriever):
        return None
    with torch.no_grad():
        return retriever.embed(encoded)


def compare(retriever: Retriever, own: Representation, other: Representation, side: Side) -> Tensor:
    """Scores [B] of `own`, the representation of `side`, and `other`, from `constant_side`."""
    if reads_jointly(retriever):
        scores: Tensor = own
        return scores
    if isinstance(other, Tensor) and len(other) != len(own):
        other = other.expand(len(own), -1)
    queries, documents = (own, other) if side == "query" else (other, own)
    return separate(retriever).similarity(queries, documents)
