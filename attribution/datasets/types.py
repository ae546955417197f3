"""A data set as the readers give it: pairs, and an account of what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from attribution.errors import UserError
from attribution.types import TextPair


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row that did not become a pair: file, row (from 1) and reason."""

    file: str
    row: int
    reason: str


@dataclass(frozen=True)
class DataSet:
    """All pairs of a data set; accepted + rejected = rows read."""

    name: str
    title: str
    pairs: tuple[TextPair, ...]
    rejected: tuple[Rejection, ...] = field(default=())

    @cached_property
    def by_id(self) -> dict[str, TextPair]:
        """Pairs by id."""
        return {pair.pair_id: pair for pair in self.pairs}

    def pair(self, pair_id: str) -> TextPair:
        """The pair of this id.

        Raises:
            UserError: there is none.
        """
        found = self.by_id.get(pair_id)
        if found is None:
            raise UserError(
                f"{self.name} has no pair {pair_id[:80]!r}: choose one from the table of pairs."
            )
        return found
