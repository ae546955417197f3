"""What methods need of a retriever, whatever its family.

Three questions: how the two texts become tokens, how a score follows from the input embeddings of
one side while the other is held constant, and, for families whose score is a sum, its terms.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeGuard, cast

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.encoded import Encoded
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Side, TextPair, TokenizedText


@dataclass(frozen=True, slots=True)
class LibraryCheck:
    """How far a retriever is from the `library` it is checked against: the relative distance of
    its embedding, or of its score, of a short pair."""

    distance: float
    compared: Literal["embedding", "score"]
    library: str = "sentence-transformers"


Representation = Any
"""What a family makes of a text to compare it with others: a vector, vectors of tokens, weights of
terms. Untyped, since each family has its own and nothing but its own `similarity` reads it."""


class Retriever(Protocol):
    """What every family has. Whoever runs the model holds `lock`; making tokens of texts takes it
    by itself."""

    family: str
    name: str
    spec: RetrieverSpec
    precision: str
    lock: threading.RLock

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    @property
    def max_length(self) -> int:
        """Tokens of a document that it reads, special ones included."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory that it takes."""
        ...

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from what its library computes of the same pair."""
        ...


class Embedded(Retriever, Protocol):
    """A retriever whose score is a function of its input embeddings."""

    def input_embeddings(self, encoded: Encoded) -> Tensor:
        """Word embeddings [B, T, H] before positions are added; detached."""
        ...

    def baseline(self, encoded: Encoded) -> Tensor:
        """The same with padding in place of every token of the text; special tokens stay."""
        ...

    def override_embeddings(self, inputs: Tensor) -> AbstractContextManager[None]:
        """While this is open the model reads `inputs` [B, T, H] as its word embeddings."""
        ...

    def embed(self, encoded: Encoded) -> Representation:
        """What the other side's text is compared with; read together, the scores [B]."""
        ...


class Separate(Embedded, Protocol):
    """Query and document are read apart and compared afterwards."""

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        """Texts of one side as tokens."""
        ...

    def encode_plain(self, texts: Sequence[str], side: Side) -> Encoded:
        """The same for `embed` alone, perhaps without the tokens."""
        ...

    def similarity(self, queries: Representation, documents: Representation) -> Tensor:
        """Scores [B] of what `embed` made of both sides."""
        ...


class Pooled(Separate, Protocol):
    """Each text becomes one vector."""

    @property
    def width(self) -> int:
        """Numbers in a vector, H."""
        ...

    def max_length_of(self, side: Side) -> int:
        """Tokens that it reads of a text of one side, special ones included."""
        ...

    def similarities(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [P, C] of every query [P, H] with every document [C, H]."""
        ...

    def directions(self, vectors: Tensor) -> Tensor:
        """What `embed` made [B, H], such that the score is an inner product of two rows.

        Raises:
            UserError: the model's similarity is no inner product.
        """
        ...


class Joint(Embedded, Protocol):
    """Query and document are read together: both sides are parts of one sequence."""

    def encode_pairs(self, pairs: Sequence[TextPair]) -> tuple[Encoded, Encoded]:
        """Query and document of each pair; the two share their features [B, T]."""
        ...


@dataclass(frozen=True, slots=True)
class ExactScore:
    """A score that is a sum over pairs of a query and a document token: `matrix` [Q, D].
    `similarities` [Q, D] is what the model compared, where that is more than the sum holds."""

    query: TokenizedText
    document: TokenizedText
    score: float
    matrix: Array
    similarities: Array | None = None


class Additive(Retriever, Protocol):
    """Its score is a sum over pairs of tokens."""

    def exact(
        self, queries: Sequence[str], documents: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> Iterator[ExactScore]:
        """The score of each pair (numbers of a query and a document) with what each query and
        document token add to it together; each text is read once."""
        ...


def reads_jointly(retriever: Retriever) -> TypeGuard[Joint]:
    """Whether query and document are read together."""
    return hasattr(retriever, "encode_pairs")


def is_pooled(retriever: Retriever) -> TypeGuard[Pooled]:
    """Whether each text becomes one vector."""
    return hasattr(retriever, "similarities")


def embedded(retriever: Retriever) -> Embedded:
    """A retriever whose family has `Capability.EMBEDDINGS`, as what it then is.

    Raises:
        UserError: its family lacks that.
    """
    if not hasattr(retriever, "embed"):
        raise UserError(
            f"{retriever.name} gives the terms of a pair's score and nothing of a text by itself, "
            "so texts are not ranked, changed or read by it: choose another model."
        )
    return cast(Embedded, retriever)


def separate(retriever: Retriever) -> Separate:
    """One of those that does not read jointly, as what it then is.

    Raises:
        UserError: as `embedded`.
    """
    return cast(Separate, embedded(retriever))


def joint(retriever: Retriever) -> Joint:
    """One of those that reads jointly, as what it then is.

    Raises:
        UserError: as `embedded`.
    """
    return cast(Joint, embedded(retriever))


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
    """What the other side's score needs of this side while it stays as it is; detached."""
    if reads_jointly(retriever):
        return None
    with torch.no_grad():
        return retriever.embed(encoded)


def compare(retriever: Retriever, own: Representation, other: Representation, side: Side) -> Tensor:
    """Scores [B] of `own`, what `embed` made of `side`, and `other`, what `constant_side` gave."""
    if reads_jointly(retriever):
        scores: Tensor = own
        return scores
    if isinstance(other, Tensor) and len(other) != len(own):
        other = other.expand(len(own), -1)
    queries, documents = (own, other) if side == "query" else (other, own)
    return separate(retriever).similarity(queries, documents)
