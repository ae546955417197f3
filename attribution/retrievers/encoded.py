"""A batch of texts as a model takes them, and as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from poslens.attribution.types import Side, TokenizedText


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch of B texts as the model takes them, and as people read them.

    `features` hold tensors [B, T] on the model's device; `texts[b]` are the first
    `len(texts[b])` of row b's T positions where padding is on the right, the last where
    it is on the left (`offsets[b]` is where they begin). `side` says which encoder reads them,
    where queries and documents have one each.
    """

    features: dict[str, Any]
    texts: tuple[TokenizedText, ...]
    offsets: tuple[int, ...]
    side: Side = "document"

    def repeated(self, n: int) -> Encoded:
        """A batch of one text, n times over: for inputs that vary while the text does not."""
        features = {
            key: value.expand(n, *value.shape[1:]) if isinstance(value, Tensor) else value
            for key, value in self.features.items()
        }
        return Encoded(features, self.texts * n, self.offsets * n, self.side)

    def picked(self, rows: Sequence[int]) -> Encoded:
        """A batch of these rows, some perhaps several times."""
        features = {
            key: value[list(rows)] if isinstance(value, Tensor) else value
            for key, value in self.features.items()
        }
        texts = tuple(self.texts[b] for b in rows)
        return Encoded(features, texts, tuple(self.offsets[b] for b in rows), self.side)

    def row(self, values: Tensor, b: int) -> Tensor:
        """The part of row b of `values` [B, T, ...] that belongs to its tokens, without padding."""
        start = self.offsets[b]
        return values[b, start : start + len(self.texts[b])]
