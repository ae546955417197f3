"""What a computation on an endpoint would send, counted by a dry run with placeholder answers,
which are neither shown nor stored."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.endpoint import EmbeddingEndpoint, RerankEndpoint
from poslens.attribution.retrievers.endpoint_address import Address, address_of
from poslens.attribution.retrievers.endpoint_client import PROBE, client_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array


@dataclass(frozen=True, slots=True)
class Cost:
    """Numbers of texts, tokens (by `estimated_tokens`) and requests, and the `price` of a million
    tokens. `bound` is empty if the numbers were counted, "about" if they were scaled up from a
    part, and "at least" if they are of a part only."""

    texts: int
    tokens: int
    requests: int
    price: float | None = None
    bound: str = ""

    @property
    def words(self) -> str:
        """`about 1,800 texts, 3,400,000 tokens, 61 requests, 0.07 at 0.02 per million tokens`."""
        parts = [
            counted(self.texts, "text"),
            counted(self.tokens, "token"),
            counted(self.requests, "request"),
        ]
        if self.price is not None:
            money = self.tokens * self.price / 1e6
            text = f"{money:,.2f}" if money >= 0.01 or not money else "less than 0.01"
            parts.append(f"{text} at {self.price:g} per million tokens")
        return f"{self.bound} {', '.join(parts)}".strip()

    @staticmethod
    def sum(costs: Iterable[Cost | None]) -> Cost | None:
        """The sum of the costs: None if all are unknown, "at least" if one of them is."""
        every = list(costs)
        stated = [cost for cost in every if cost is not None]
        if not stated:
            return None
        bounds = {cost.bound for cost in stated} | (
            {"at least"} if len(stated) < len(every) else set()
        )
        return Cost(
            sum(cost.texts for cost in stated),
            sum(cost.tokens for cost in stated),
            sum(cost.requests for cost in stated),
            stated[0].price,
            "at least" if "at least" in bounds else max(bounds),
        )

    def scaled(self, factor: float) -> Cost:
        """This cost times `factor`."""
        texts, tokens, requests = (
            round(factor * n) for n in (self.texts, self.tokens, self.requests)
        )
        return Cost(texts, tokens, requests, self.price, "about")


class Counter:
    """Returns placeholder answers of an endpoint and counts what would be sent."""

    def __init__(self, address: Address, width: int) -> None:
        self._address, self._width = address, width
        self.texts = self.tokens = self.requests = 0

    @property
    def cost(self) -> Cost:
        """What was counted so far."""
        return Cost(self.texts, self.tokens, self.requests, self._address.price)

    def vectors(self, texts: Sequence[str]) -> Array:
        """Placeholder vectors [n, H] that depend only on the texts."""
        self._count(len(texts), sum(map(estimated_tokens, texts)), estimated_tokens(PROBE))
        arrays = [_numbers(text, self._width) for text in texts]
        return np.array(arrays, dtype=np.float32).reshape(len(texts), self._width)

    def scores(self, query: str, documents: Sequence[str]) -> Array:
        """Placeholder scores [n] that depend only on the texts."""
        query_tokens = len(documents) * estimated_tokens(query)
        self._count(len(documents), query_tokens + sum(map(estimated_tokens, documents)), 0)
        tokens = [_numbers(query + text, 1)[0] for text in documents]
        return np.array(tokens, dtype=np.float32)

    def _count(self, n: int, tokens: int, each: int) -> None:
        checkpoint()
        requests = -(-n // self._address.texts_a_request)
        self.texts += n
        self.requests += requests
        self.tokens += tokens + requests * each


def _numbers(text: str, width: int) -> Array:
    generator = np.random.default_rng(zlib.crc32(text.encode("utf-8", "replace")))
    return generator.standard_normal(width, dtype=np.float32)


def counting(spec: RetrieverSpec) -> tuple[Retriever, Counter]:
    """A retriever for an endpoint that sends no requests, and the counter of what it would send.

    Raises:
        UserError: the endpoint was not registered at startup, or does not answer the probe.
    """
    address = address_of(spec)
    counter = Counter(address, len(client_of(address).probe))
    if address.reranks:
        return RerankEndpoint(spec, counter.scores), counter
    return EmbeddingEndpoint(spec, counter.vectors), counter
