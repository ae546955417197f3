"""Faithfulness: does an attribution rank a document's units by their effect on the score?

Units (words, tokens or sentences) are deleted in the order of their contribution, or inserted into
a document without units, and the score is recorded: deletion and insertion curves (Petsiuk et al.
2018, RISE), comprehensiveness and sufficiency (DeYoung et al. 2020, ERASER). A deleted unit is
replaced with the padding token's embedding, so length, positions and special tokens stay the same.
Documents without words are rare in training, so the middle of a curve is more meaningful than its
end.

Every measure is also computed for random orders, because the score falls whatever is deleted, and
for reading order from the front and from the back, because an order can be good by position alone
(`position_order`). `deletion.py` computes all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import SEED
from poslens.attribution.errors import UserError
from poslens.attribution.types import Array, Method, set_arrays

Unit = Literal["word", "token", "sentence"]
UNITS: tuple[Unit, ...] = ("word", "token", "sentence")

FRACTIONS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Fractions of the units at which curves are evaluated."""

ERASER_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""ERASER's fractions; like its released scorer, measures average over the five."""

POSITION_ORDERS = {"front": "front to back", "back": "back to front"}
"""Where an order by position alone begins, and its name on pages and in figures."""

N_RANDOM = 5
MAX_RANDOM = 100

EQUAL = 1e-3
"""Relative difference of the whole and the empty document's scores up to which they count as equal;
then scaled scores are undefined."""

VERSION = 2
"""Part of the key: raise it when the numbers change."""


_PARAMETERS = re.compile(
    r"deletion_insertion\(unit=(?P<unit>\w+), n_random=(?P<n_random>\d{1,3}), "
    r"seed=(?P<seed>\d{1,19}), fractions=(?P<fractions>[\d./e-]{1,2000}), version=\d{1,9}\)"
)


@dataclass(frozen=True, slots=True)
class ErasureParameters:
    """All parameters that the numbers depend on besides model, method and texts; the repr is the
    key.

    `fractions` always include 0, 1 and ERASER's five.

    Raises:
        UserError: a fraction outside [0, 1], an unknown unit, no or too many random orders.
    """

    fractions: tuple[float, ...] = FRACTIONS
    unit: Unit = "word"
    n_random: int = N_RANDOM
    seed: int = SEED

    def __post_init__(self) -> None:
        if not all(0.0 <= fraction <= 1.0 for fraction in self.fractions):
            raise UserError("Fractions must be between 0 and 1.")
        if self.unit not in UNITS:
            raise UserError(f"unit can't be {self.unit!r}: choose from {', '.join(UNITS)}.")
        if not 1 <= self.n_random <= MAX_RANDOM:
            raise UserError(f"n_random must be 1 to {MAX_RANDOM}, not {self.n_random}.")
        grid = {0.0, 1.0, *ERASER_FRACTIONS, *map(float, self.fractions)}
        object.__setattr__(self, "fractions", tuple(sorted(grid)))

    def __repr__(self) -> str:
        fractions = "/".join(map(repr, self.fractions))
        return (
            f"deletion_insertion(unit={self.unit}, n_random={self.n_random}, seed={self.seed}, "
            f"fractions={fractions}, version={VERSION})"
        )

    @classmethod
    def parse(cls, text: str) -> ErasureParameters:
        """The parameters with this repr.

        Raises:
            UserError: the text is not a repr of parameters.
        """
        match = _PARAMETERS.fullmatch(text)
        try:
            if match is None:
                raise ValueError("no parameters")
            fractions = tuple(map(float, match["fractions"].split("/")))
            unit, n_random, seed = match["unit"], int(match["n_random"]), int(match["seed"])
            parameters = cls(fractions, unit, n_random, seed)  # type: ignore[arg-type]  # it checks
        except ValueError:
            raise UserError("These are not parameters of a faithfulness test.") from None
        if repr(parameters) != text:
            raise UserError("These parameters are from another version of the faithfulness test.")
        return parameters

    def counts(self, n_units: int) -> NDArray[np.int64]:
        """Each fraction as a number of units out of `n_units` [F], ascending. It is rounded, but
        between none and all it is at least one and at most all but one, so 1% of a short document
        is one unit. Complementary fractions are complementary sets of units (except for half of an
        odd number)."""
        fractions = np.array(self.fractions)
        smaller = np.minimum(fractions, 1 - fractions)
        # The summand prevents a half, slightly smaller in binary, from being rounded down.
        rounded = np.maximum(np.floor(smaller * n_units + 0.5 + 1e-9), smaller > 0).astype(np.int64)
        counts = np.where(fractions <= 0.5, rounded, n_units - rounded)
        # A single unit has no smaller or larger set.
        return np.maximum.accumulate(counts)


@dataclass(frozen=True, slots=True)
class RandomOrders:
    """Scores along R random orders: `deletion` and `insertion` [R, F], in units of the score.

    They depend on model, texts and parameters but not on the method, so methods share them. Each
    order is deleted from the front and inserted from the back, so both curves have many documents
    in common: a third fewer to score.
    """

    deletion: Array
    insertion: Array

    def __post_init__(self) -> None:
        set_arrays(self, "a score", deletion=(None, None), insertion=(None, None))
        if self.deletion.shape != self.insertion.shape:
            raise ValueError("deletion and insertion differ in shape")


@dataclass(frozen=True, slots=True)
class Measures:
    """Four measures of one order, relative to the difference of the whole and the empty document's
    scores.

    `deletion_area` (lower is better) and `insertion_area` (higher is better) are areas under the
    curves, scaled so that the whole document is 1 and the empty one 0; a document whose units
    contribute equally has 0.5. They are outside [0, 1] if a part scores above the whole or below
    the empty document. `comprehensiveness` is the loss without the top units (higher is better),
    `sufficiency` the loss with only the top units (lower is better); both are means over ERASER's
    five fractions, divided by |score - baseline| (not part of ERASER), so a loss is positive
    whichever of the two scores is larger.
    """

    deletion_area: float
    insertion_area: float
    comprehensiveness: float
    sufficiency: float


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """One attribution's test on its pair.

    `deletion` and `insertion` [F] are scores at `parameters.fractions` of `n_units` units, which
    cover what the model read of the document (`truncated`: not all of it). `enrichment` is the
    evidence's share of the attribution divided by its share of tokens (None without evidence).
    `attribution_seconds` is the time of the attribution, `seconds` that of this test (with random
    orders only if `random_orders` was not given).
    """

    model: str
    method: Method
    pair_id: str
    parameters: ErasureParameters
    n_units: int
    truncated: bool
    deletion: Array
    insertion: Array
    random_orders: RandomOrders
    enrichment: float | None
    attribution_seconds: float
    seconds: float

    def __post_init__(self) -> None:
        if self.n_units < 1 or min(self.attribution_seconds, self.seconds) < 0:
            raise ValueError("no test of a document's units")
        shape = (len(self.parameters.fractions),)
        set_arrays(self, "a score", deletion=shape, insertion=shape)
        if self.random_orders.deletion.shape != (self.parameters.n_random, *shape):
            raise ValueError("random orders of other parameters")

    @property
    def score(self) -> float:
        """The score of the whole document, as far as the model reads it."""
        return float(self.deletion[0])

    @property
    def baseline(self) -> float:
        """Score with every unit replaced with padding embeddings."""
        return float(self.deletion[-1])

    @property
    def gap(self) -> float | None:
        """score - baseline; None if they are equal (see `EQUAL`), in which case there are no
        measures. If it is negative, the document scores below an empty one and deletion and
        insertion areas exchange their meanings; `summarize` excludes such pairs."""
        difference = self.score - self.baseline
        limit = EQUAL * max(abs(self.score), abs(self.baseline))
        return difference if abs(difference) > limit else None

    @property
    def removed(self) -> NDArray[np.float64]:
        """The fractions of units actually deleted or inserted [F]: whole units, so short documents
        have fewer different ones than `parameters.fractions`. Areas are computed over these."""
        return self.parameters.counts(self.n_units) / self.n_units

    def scaled(self, curve: Array) -> NDArray[np.float64]:
        """Scores scaled so that the whole document is 1 and the empty one 0.

        Raises:
            ValueError: the two are equal.
        """
        if self.gap is None:
            raise ValueError("the whole and the empty document have the same score")
        return (np.asarray(curve, dtype=np.float64) - self.baseline) / self.gap

    @property
    def measures(self) -> Measures | None:
        """Measures of the attribution's order; None if `gap` is None."""
        return self._measures(self.deletion, self.insertion)

    @property
    def random(self) -> Measures | None:
        """Mean measures of the random orders; None if `gap` is None."""
        # All four are linear in the curves, so the mean curve has the mean measures.
        return self._measures(
            self.random_orders.deletion.mean(0), self.random_orders.insertion.mean(0)
        )

    @property
    def gain(self) -> Measures | None:
        """Difference from random orders, signed so that positive is better."""
        measured, random = self.measures, self.random
        if measured is None or random is None:
            return None
        return Measures(
            deletion_area=random.deletion_area - measured.deletion_area,
            insertion_area=measured.insertion_area - random.insertion_area,
            comprehensiveness=measured.comprehensiveness - random.comprehensiveness,
            sufficiency=random.sufficiency - measured.sufficiency,
        )

    def _measures(self, deletion: Array, insertion: Array) -> Measures | None:
        gap = self.gap
        if gap is None:
            return None
        at = [self.parameters.fractions.index(fraction) for fraction in ERASER_FRACTIONS]
        without, alone = deletion[at].astype(np.float64), insertion[at].astype(np.float64)
        return Measures(
            deletion_area=float(np.trapezoid(self.scaled(deletion), self.removed)),
            insertion_area=float(np.trapezoid(self.scaled(insertion), self.removed)),
            comprehensiveness=float(np.mean(self.score - without) / abs(gap)),
            sufficiency=float(np.mean(self.score - alone) / abs(gap)),
        )


def position_order(start: str) -> Method:
    """The baseline that deletes and inserts a document's units in reading order from one end
    (`start`, one of `POSITION_ORDERS`): what an order by position alone achieves. A method that is
    no better shows nothing beyond the position of units."""
    return Method("position_order", {"order": start, "version": 1})
