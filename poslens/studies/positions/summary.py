"""Subject and result of a within-query position effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from poslens.attribution.curves.positions import LENGTH_BUCKETS, length_bucket
from poslens.attribution.datasets import Collection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.position_effect import (
    MARGIN,
    PositionEffect,
    PositionRanks,
    QueryPositions,
    first_minus_last,
    position_effect,
    query_positions,
)
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.kinds.position_ranks import RankedPair
from poslens.compute.provenance import ModelIdentity
from poslens.paired import ItemMeasure, MeasuredModel

ALL, WHOLE = "all", "read whole"


@dataclass(frozen=True)
class Moved:
    """The pairs with movable evidence, the corpus that they are ranked in, and the control
    pairs, in which another sentence is moved. `fingerprint` is the corpus's."""

    dataset: str
    pairs: tuple[TextPair, ...]
    nulls: tuple[TextPair, ...]
    collection: Collection
    fingerprint: str
    selection: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PositionSubject:
    """One model, the pairs to relocate and the number of positions."""

    spec: RetrieverSpec
    moved: Moved
    positions: int

    @property
    def items(self) -> list[RankedPair]:
        """Every pair to rank, controls included."""
        pairs = (*self.moved.pairs, *self.moved.nulls)
        return [RankedPair(pair, self.moved.fingerprint) for pair in pairs]


@dataclass(frozen=True)
class PositionSummary:
    """The ranks of one model's pairs. `left_out` pairs have evidence that the model reads
    completely at fewer than two positions; `failed` gives the reasons why others have no ranks.
    `null` is the effect of moving another sentence, if requested."""

    model: ModelIdentity
    asked: PositionSubject
    queries: tuple[QueryPositions, ...]
    effect: PositionEffect
    null: PositionEffect | None
    left_out: int
    failed: Mapping[str, str]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name

    @property
    def measured(self) -> MeasuredModel:
        """First minus last by query, to compare models by."""
        gains = np.array([query.gains for query in self.queries])
        apart = first_minus_last(gains).reshape(-1, 1)
        ids = [query.pair.pair_id for query in self.queries]
        documents = {query.pair.pair_id: query.pair.document for query in self.queries}
        rows = dict(zip(ids, apart, strict=True))
        measure = ItemMeasure("nDCG@10 first minus last", "queries", MARGIN, rows, documents)
        return MeasuredModel(self.name, (measure,))

    @cached_property
    def groups(self) -> dict[tuple[str, str], PositionEffect]:
        """The effect by group: all queries, those of documents read whole, and each length and
        language that has any."""
        effects = {}
        for key, queries in self._grouped():
            if (effect := position_effect(queries)) is not None:
                effects[key] = effect
        return effects

    def _grouped(self) -> Iterator[tuple[tuple[str, str], list[QueryPositions]]]:
        yield (ALL, ""), list(self.queries)
        yield (WHOLE, ""), [query for query in self.queries if query.whole]
        for bucket in LENGTH_BUCKETS:
            yield (
                ("length", bucket),
                [
                    query
                    for query in self.queries
                    if query.pair.document_tokens
                    and length_bucket(query.pair.document_tokens) == bucket
                ],
            )
        languages = sorted({query.pair.language or "" for query in self.queries})
        for language in languages if len(languages) > 1 else ():
            yield (
                ("language", language or "unknown"),
                [query for query in self.queries if (query.pair.language or "") == language],
            )


def ranked_queries(
    pairs: Sequence[TextPair],
    relocations: Mapping[str, Relocation],
    ranks: Mapping[str, PositionRanks],
    positions: int,
) -> list[QueryPositions]:
    """The queries of `pairs` that have both results, by pair id, and whose evidence is read whole
    at two positions or more."""
    queries = (
        query_positions(pair, relocations[pair.pair_id], ranks[pair.pair_id], positions)
        for pair in pairs
        if pair.pair_id in relocations and pair.pair_id in ranks
    )
    return [query for query in queries if query is not None]


def no_effect(name: str, failed: Mapping[str, str], n: int) -> UserError:
    """Why none of a model's `n` pairs has ranks at two positions; `failed` has reasons by pair."""
    if len(failed) == n:
        return UserError(f"No pair could be ranked with {name}: {next(iter(failed.values()))}")
    return UserError(
        f"{name} reads the evidence whole at fewer than two positions in each of {n:,} pairs: "
        "choose shorter documents, or a model that reads more."
    )
