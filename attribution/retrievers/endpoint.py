"""Endpoints: models on a server that returns only vectors of texts or scores of documents
(docs/endpoints.md). They are registered by name at startup.

Everything that only needs scores of texts works with them. Padding cannot be sent, so a unit is
removed by deleting its characters, and the text after it moves forward. An empty text is sent as a
full stop. Texts are sent whole, or up to a number of words that the address states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from poslens.attribution.errors import Unavailable, UserError
from poslens.attribution.retrievers.base import Encoded, LibraryCheck, WordInputs
from poslens.attribution.retrievers.endpoint_address import address_of
from poslens.attribution.retrievers.endpoint_client import (
    TOLERANCE,
    EndpointClient,
    Rejected,
    client_of,
)
from poslens.attribution.retrievers.family import Capability, Family, register
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import MAX_CHARACTERS, words
from poslens.attribution.types import Array, Side, TextPair, TokenizedText

NOTHING_LEFT = "."
_LIBRARY = "another request"
QUOTED = 60
"""Number of characters of a rejected text that its error quotes."""

Vectors = Callable[[Sequence[str]], Array]
"""Vectors [n, H] of texts, in their order."""

Scores = Callable[[str, Sequence[str]], Array]
"""Scores [n] of documents for a query, in their order."""


class Received(Protocol):
    """Vectors [H] that an endpoint returned earlier, by side and text (without prompt)."""

    def select(self, side: Side, texts: Sequence[str]) -> Mapping[str, Array]:
        """The vectors of those of `texts` that were received."""

    def put(self, side: Side, vectors: Iterable[tuple[str, Array]]) -> None:
        """Add vectors."""


class _Endpoint(WordInputs):
    """Code shared by both kinds: words as tokens, and texts without some of their words."""

    precision = "unknown"
    weight_bytes = 0

    def __init__(self, spec: RetrieverSpec) -> None:
        super().__init__(spec)
        # Without a limit, how much the server reads is unknown.
        self.max_length = spec.max_length or MAX_CHARACTERS

    def max_length_of(self, side: Side) -> int:
        """The number of words that are sent of a text; its maximum length if all are."""
        return self.max_length

    def _tokens(self, text: str, side: Side) -> TokenizedText:
        spans = words(text)
        if not spans:
            raise UserError(f"The {side} has no word to send to {self.name}: enter one.")
        read = spans[: self.max_length]
        starts, ends = np.array(read, dtype=np.int32).T
        texts = tuple(text[a:b] for a, b in read)
        special = np.zeros(len(read), dtype=np.bool_)
        return TokenizedText(texts, starts, ends, special, len(spans), self.max_length)

    def _named(
        self, rejected: Rejected, sent: Sequence[str], texts: Sequence[str], query: str = ""
    ) -> Rejected:
        """The rejection of a request, naming the one of `texts` from which its texts, of those
        `sent`, were made, and a reranker's `query`; unchanged if they were made from several."""
        asked = set(rejected.texts)
        made_from = {
            text for text, sent_text in zip(texts, sent, strict=True) if sent_text in asked
        }
        if len(made_from) != 1:
            return rejected
        beginning = _beginning(made_from.pop())
        if query:
            return rejected.of(
                f"the query {_beginning(query)} with the document {beginning}", "they"
            )
        return rejected.of(f"the text {beginning}", "it")

    def _sent(self, texts: Sequence[str], encoded: Encoded) -> list[str]:
        """`texts` as they are sent, without removed words."""
        if self._read is None:
            return list(texts)
        return [
            _without(text, tokens, row[..., 0] != 0)
            for text, tokens, row in zip(texts, encoded.texts, self._read, strict=True)
        ]

    def _steady(self, check: LibraryCheck) -> LibraryCheck:
        if check.distance > TOLERANCE:
            raise Unavailable(
                f"{self.name} returns another {check.compared} for a text in a batch than for the "
                f"text alone (difference {check.distance:.1%}): check the server."
            )
        return check


def _beginning(text: str) -> str:
    """The beginning of a text in quotation marks, on one line and without control characters."""
    line = " ".join(text[: 8 * QUOTED].split())
    line = line if len(line) <= QUOTED else line[: QUOTED - 1] + "…"
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return f'"{shown}"'


def _within_limit(text: str, tokens: TokenizedText) -> str:
    return text[: tokens.read_until] if tokens.truncated else text


def _without(text: str, tokens: TokenizedText, stays: Tensor) -> str:
    parts, end = [], 0
    # Columns, because occlusion asks for hundreds of variants of a text, each without a few words.
    removed = (~stays[: len(tokens)]).nonzero()[:, 0].numpy()
    for start, stop in zip(tokens.starts[removed], tokens.ends[removed], strict=True):
        parts.append(text[end:start])
        end = stop
    left = "".join([*parts, text[end:]])
    return left if left.strip() else NOTHING_LEFT


class EmbeddingEndpoint(_Endpoint):
    """Vectors of texts, compared by cosine or dot product."""

    def __init__(self, spec: RetrieverSpec, vectors: Vectors) -> None:
        super().__init__(spec)
        self._vectors = vectors
        self._received: Received | None = None

    def storing(self, received: Received) -> EmbeddingEndpoint:
        """The same endpoint, which sends no text whose vector was `received`, and adds the vectors
        of each response to it at once, except those of texts without some of their words: an
        attribution of one pair has hundreds of these, and only its result is worth the space."""
        storing = copy(self)
        storing._received = received
        return storing

    @property
    def width(self) -> int:
        """Number of dimensions of a vector, H; sends no request."""
        return int(self._vectors([]).shape[1])

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        """Split texts into words, up to the limit.

        Raises:
            UserError: a text has no word.
        """
        read = tuple(self._tokens(text, side) for text in texts)
        sent = tuple(map(_within_limit, texts, read))
        return Encoded({"texts": sent}, read, (0,) * len(texts), side)

    encode_plain = encode_texts

    def embed(self, encoded: Encoded) -> Tensor:
        """Vectors [B, H] as the server returns them.

        Raises:
            Rejected: the server rejects a text, or returns no vector for it that can be compared.
            Unavailable: it does not answer as it should.
        """
        spec, side = self.spec, encoded.side
        prompt = (spec.query_prompt if side == "query" else spec.document_prompt) or ""
        texts: tuple[str, ...] = encoded.features["texts"]
        if len(texts) < len(encoded.texts):  # one text, repeated
            texts = texts * len(encoded.texts)
        sent, whole = self._sent(texts, encoded), set(texts)
        each = list(dict.fromkeys(sent))
        vectors: dict[str, Array] = {}
        if self._received is not None:
            vectors |= self._received.select(side, [text for text in each if text in whole])
        missing = [text for text in each if text not in vectors]
        size = len(each) if self._received is None else address_of(spec).texts_a_request
        try:
            for start in range(0, len(missing), size):
                part = missing[start : start + size]
                vectors |= self._accepted(part, side, prompt, whole)
        except Rejected as rejected:
            raise self._named(rejected, [prompt + text for text in sent], texts) from None
        return torch.from_numpy(np.stack([vectors[text] for text in sent]))

    def _accepted(
        self, texts: Sequence[str], side: Side, prompt: str, whole: Set[str]
    ) -> dict[str, Array]:
        """The vectors of texts; those of `whole` texts are stored. A rejected request of several is
        sent again in halves, because it may have been too large; otherwise the rejection then has
        only one text."""
        try:
            values = self._vectors([prompt + text for text in texts])
        except Rejected as rejected:
            if len(texts) < 2 or len(rejected.texts) == 1:
                raise
        else:
            vectors = dict(zip(texts, values, strict=True))
            stored = [(text, vector) for text, vector in vectors.items() if text in whole]
            if self._received is not None and stored:
                self._received.put(side, stored)
            return vectors
        half = len(texts) // 2
        return self._accepted(texts[:half], side, prompt, whole) | self._accepted(
            texts[half:], side, prompt, whole
        )

    def similarity(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [B] of queries [B, H] with documents [B, H]."""
        return (self.directions(queries) * self.directions(documents)).sum(-1)

    def similarities(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [P, C] of every query [P, H] with every document [C, H]."""
        return self.directions(queries) @ self.directions(documents).T

    def directions(self, vectors: Tensor) -> Tensor:
        """`vectors` [B, H] scaled so that the score is their inner product."""
        return (
            vectors if self.spec.similarity == "dot" else nn.functional.normalize(vectors, dim=-1)
        )

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance between a text's vector from a separate request and from a batch.

        Raises:
            Unavailable: it is so large that a text's vector depends on the other texts.
        """
        texts = [pair.document, pair.query]
        together = self.embed(self.encode_texts(texts, "document"))[0]
        alone = self.embed(self.encode_texts(texts[:1], "document"))[0]
        distance = float((together - alone).norm() / alone.norm().clamp_min(1e-12))
        return self._steady(LibraryCheck(distance, "embedding", _LIBRARY))


class RerankEndpoint(_Endpoint):
    """Scores of documents for a query; the server reads both together."""

    def __init__(self, spec: RetrieverSpec, scores: Scores) -> None:
        super().__init__(spec)
        self._scores = scores

    def encode_pairs(self, pairs: Sequence[TextPair]) -> tuple[Encoded, Encoded]:
        """Split both texts of each pair into words, up to the limit.

        Raises:
            UserError: a text has no word.
        """
        none = (0,) * len(pairs)
        queries = tuple(self._tokens(pair.query, "query") for pair in pairs)
        documents = tuple(self._tokens(pair.document, "document") for pair in pairs)
        features = {
            "pairs": tuple(
                (_within_limit(pair.query, query), _within_limit(pair.document, document))
                for pair, query, document in zip(pairs, queries, documents, strict=True)
            )
        }
        return (
            Encoded(features, queries, none, "query"),
            Encoded(features, documents, none, "document"),
        )

    def embed(self, encoded: Encoded) -> Tensor:
        """The scores [B].

        Raises:
            as `EmbeddingEndpoint.embed`.
        """
        pairs: tuple[tuple[str, str], ...] = encoded.features["pairs"]
        if len(pairs) < len(encoded.texts):  # one pair, repeated
            pairs = pairs * len(encoded.texts)
        queries, documents = ([pair[side] for pair in pairs] for side in (0, 1))
        if encoded.side == "query":
            queries = self._sent(queries, encoded)
        else:
            documents = self._sent(documents, encoded)
        spec = self.spec
        rows: dict[str, list[int]] = {}
        for row, query in enumerate(queries):
            rows.setdefault(query, []).append(row)
        values = torch.zeros(len(pairs))
        for query, at in rows.items():
            asked = [(spec.document_prompt or "") + documents[row] for row in at]
            each = list(dict.fromkeys(asked))
            try:
                scores = self._scores((spec.query_prompt or "") + query, each)
            except Rejected as rejected:
                texts = [pairs[row][1] for row in at]
                raise self._named(rejected, asked, texts, pairs[at[0]][0]) from None
            of = dict(zip(each, np.array(scores).tolist(), strict=True))
            values[at] = torch.tensor([of[text] for text in asked])
        return values

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance between a document's score from a separate request and from one with another
        document, relative to the score if that is above 1.

        Raises:
            Unavailable: it is so large that a document's score depends on the other documents.
        """
        other = replace(pair, document=pair.query)
        together = float(self.embed(self.encode_pairs([pair, other])[1])[0])
        alone = float(self.embed(self.encode_pairs([pair])[1])[0])
        return self._steady(LibraryCheck.of_score(together, alone, 1.0, _LIBRARY))


def _client(spec: RetrieverSpec) -> EndpointClient:
    return client_of(address_of(spec))


EMBEDDING = register(
    Family(
        name="endpoint",
        title="embedding endpoint",
        order=60,
        capabilities=frozenset({Capability.REMOVAL, Capability.VECTOR}),
        search="vectors",
        load=lambda spec, _files, _place: EmbeddingEndpoint(spec, _client(spec).vectors),
        has_weights=False,
        why_not="an endpoint returns only vectors of texts, so there are no gradients, layers or "
        "term weights",
        probe=lambda spec: _client(spec).probe,
    )
)

RERANK = register(
    Family(
        name="rerank_endpoint",
        title="rerank endpoint",
        order=61,
        capabilities=frozenset({Capability.REMOVAL}),
        search="rerank",
        load=lambda spec, _files, _place: RerankEndpoint(spec, _client(spec).scores),
        has_weights=False,
        why_not="an endpoint returns only scores of documents, so there are no gradients, layers "
        "or vectors",
        probe=lambda spec: _client(spec).probe,
    )
)
