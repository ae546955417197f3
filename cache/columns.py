"""Pairs as columns: what the store compares of many pairs at once, made once for those of a data
set or of a choice of its pairs."""

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
    """n pairs by columns, each made when it is first asked for. A value: nobody may change one."""

    def __init__(self, pairs: Sequence[TextPair], *, kept: bool = False) -> None:
        """`kept` says that who asks keeps the columns: texts need not be remembered one by one."""
        self.pairs, self._kept = pairs, kept

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def ids(self) -> NDArray[np.object_]:
        """Their ids [n]."""
        return np.array([pair.pair_id for pair in self.pairs], dtype=object)

    @cached_property
    def places(self) -> dict[str, NDArray[np.int64]]:
        """Where the pairs of each data set stand."""
        names = [pair.dataset for pair in self.pairs]
        if len(distinct := dict.fromkeys(names)) == 1:
            return {names[0]: np.arange(len(names))}
        index = numbered(names)
        return {name: np.flatnonzero(index == k) for k, name in enumerate(distinct)}

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        """Fingerprints of their texts as the store's numbers [n]."""
        return text_numbers(self.pairs, remembered=not self._kept)

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """Which of the different documents each has [n], numbered as they first come."""
        return numbered([pair.document for pair in self.pairs])

    @property
    def once(self) -> PairColumns:
        """Each pair once, in its first place and with its last texts."""
        return self if self._once is None else self._once

    @cached_property
    def _once(self) -> PairColumns | None:
        # None and not this one: what holds itself stays until garbage is searched for.
        # Names alone where that is enough: a million tuples take 70 MB.
        pairs: tuple[TextPair, ...]
        if len(self.places) < 2:
            pairs = tuple({pair.pair_id: pair for pair in self.pairs}.values())
        else:
            pairs = tuple({(pair.dataset, pair.pair_id): pair for pair in self.pairs}.values())
        return None if len(pairs) == len(self) else PairColumns(pairs, kept=self._kept)


def columns_of(pairs: Sequence[TextPair]) -> PairColumns:
    """The pairs as columns; `Pairs` keep theirs."""
    if not isinstance(pairs, Pairs):
        return PairColumns(pairs)
    if pairs.made is None:
        # Of a plain tuple: what holds itself stays until garbage is searched for.
        pairs.made = PairColumns(tuple(pairs), kept=True)
    return cast(PairColumns, pairs.made)
