"""Differences that may be too rare to be in a sample of documents."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Statistic, Values, numbered
from poslens.attribution.evaluation.sample_size import LEVEL
from poslens.attribution.types import ROUNDING

FEW = 5
"""Number of documents that must differ by more than the margin in one direction for the bootstrap
to represent how much documents can differ in that direction."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Differences so rare that n documents can miss them.

    If a share q of all documents lost `loss`, none of n would with probability (1 - q)^n (Clopper
    and Pearson 1934). `loss` and `gain` are the largest possible, or 0 if FEW documents or more
    differ by more than the margin in this direction: then resampling represents how much documents
    can differ. `mean` is the mean difference of the documents that were seen.
    """

    mean: float
    loss: float
    gain: float
    none_differ: bool

    @classmethod
    def of(
        cls,
        values: Values,
        groups: Sequence[Hashable] | None,
        statistic: Statistic,
        mean: float,
        margin: float,
        largest: float,
    ) -> Unseen | None:
        """What documents that were not seen could differ by, up to `largest`. None for a statistic
        that single documents don't have, such as PSI, if it differs."""
        index = numbered(groups if groups is not None else range(len(values)))
        sums = np.zeros((int(index.max()) + 1, values.shape[1]))
        np.add.at(sums, index, values)
        alone = np.asarray(statistic(sums / np.bincount(index)[:, None]))
        none_differ = not (np.abs(alone) > ROUNDING).any()
        if none_differ and abs(mean) > ROUNDING:
            return None
        loss, gain = (
            largest if (sign * alone > margin + ROUNDING).sum() < FEW else 0.0 for sign in (-1, 1)
        )
        return cls(mean, loss, gain, none_differ)

    def ends(self, n: int, level: float) -> tuple[float, float]:
        """The lowest and highest mean difference that n documents don't rule out at this level."""
        share = 1 - level ** (1 / n)
        return self.mean - share * self.loss, self.mean + share * self.gain

    def needed(self, margin: float) -> int | None:
        """Number of documents, at least MIN_DOCUMENTS, whose `ends` at 5% are within the margin;
        None if no number suffices."""
        sides = _enough(margin + self.mean, self.loss), self.needed_above(margin)
        return None if None in sides else max(filter(None, sides))

    def needed_above(self, margin: float) -> int | None:
        """The same for the highest difference alone."""
        return _enough(margin - self.mean, self.gain)


def _enough(room: float, extra: float) -> int | None:
    """Number of documents, at least MIN_DOCUMENTS, that rule out that a share of all documents
    which they miss adds up to `room`, if each differs by `extra`; None without room."""
    if room <= 0:
        return None
    share = min(room / extra, 0.95) if extra else 0.95
    return max(MIN_DOCUMENTS, math.ceil(math.log(LEVEL) / math.log1p(-share)))
