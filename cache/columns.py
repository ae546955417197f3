"""Text pairs as columns, for vectorized lookups in the store; built once per data set or selection
of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import numbered
from poslens.attribution.types import Pairs, TextPair
from poslens.cache.keys import text_numbers


class PairColumns:
    """The attributes of n pairs as columns, each built on first access. Immutable: callers must not
    modify the arrays."""

    def __init__(self, pairs: Sequence[TextPair], *, kept: bool = False) -> None:
        """With `kept`, the caller keeps this object, so text fingerprints are not also cached per
        pair."""
        self.pairs, self._kept = pairs, kept

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def ids(self) -> NDArray[np.object_]:
        """Pair ids [n]."""
        return np.array([pair.pair_id for pair in self.pairs], dtype=object)

    @cached_property
    def places(self) -> dict[str, NDArray[np.int64]]:
        """Indices of the pairs of each data set, by data set name."""
        names = [pair.dataset for pair in self.pairs]
        if len(distinct := dict.fromkeys(names)) == 1:
            return {names[0]: np.arange(len(names))}
        index = numbered(names)
        return {name: np.flatnonzero(index == k) for k, name in enumerate(distinct)}

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        """Text fingerprints of the pairs as signed 64-bit integers [n], as the store indexes
        them."""
        return text_numbers(self.pairs, remembered=not self._kept)

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """Index of each pair's document among the distinct documents [n], numbered in order of
        first occurrence."""
        return numbered([pair.document for pair in self.pairs])

    @property
    def once(self) -> PairColumns:
        """The pairs without duplicate ids: each at its first position, with its last texts."""
        return self if self._once is None else self._once

    @cached_property
    def _once(self) -> PairColumns | None:
        # None instead of `self`: a reference cycle would survive until the next garbage collection.
        # Comparing names is enough in the common case; a million tuples would take 70 MB.
        pairs: tuple[TextPair, ...]
        if len(self.places) < 2:
            pairs = tuple({pair.pair_id: pair for pair in self.pairs}.values())
        else:
            pairs = tuple({(pair.dataset, pair.pair_id): pair for pair in self.pairs}.values())
        return None if len(pairs) == len(self) else PairColumns(pairs, kept=self._kept)


def columns_of(pairs: Sequence[TextPair]) -> PairColumns:
    """The pairs as columns; a `Pairs` object caches its columns."""
    if not isinstance(pairs, Pairs):
        return PairColumns(pairs)
    if pairs.made is None:
        # Built from a plain tuple: a reference cycle would survive until the next garbage
        # collection.
        pairs.made = PairColumns(tuple(pairs), kept=True)
    return cast(PairColumns, pairs.made)
