"""Pairs with their attributes as columns, for vectorized lookups in the store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.pairs import Pairs
from poslens.attribution.types import TextPair
from poslens.cache.keys import signed, text_fingerprint


class _BriefPairs(Pairs):
    """Pairs of a caller that keeps no columns: text fingerprints are cached per pair instead."""

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        return np.fromiter((signed(text_fingerprint(pair)) for pair in self), np.int64, len(self))


def columns_of(pairs: Sequence[TextPair]) -> Pairs:
    """The pairs with their columns: the same object if it is a `Pairs`, which keeps them."""
    return pairs if isinstance(pairs, Pairs) else _BriefPairs(pairs)
