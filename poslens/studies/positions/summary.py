"""The subject and the result of the study `positions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from poslens.attribution.curves.positions import LENGTH_BUCKETS, length_bucket
from poslens.attribution.datasets import Collection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.position_effect import (
    PositionEffect,
    PositionRanks,
    QueryPositions,
    position_effect,
    query_positions,
)
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.kinds.interventions import RankedPair
from poslens.compute.provenance import ModelIdentity

ALL, WHOLE = "all", "read whole"
FIRST_MINUS_LAST = "drop in nDCG@10 (first minus last)"
"""Not "position effect": a lower drop may be a stronger effect. Not "nDCG@10": a sentence that it
is lower would read as a worse ranking."""


@dataclass(frozen=True)
class Moved:
    """The pairs whose evidence is moved, the control pairs (`nulls`), in which another sentence is
    moved, and the corpus in which they are ranked, with its `fingerprint`."""

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
        """Every pair to rank, including controls."""
        pairs = (*self.moved.pairs, *self.moved.nulls)
        return [RankedPair(pair, self.moved.fingerprint) for pair in pairs]


@dataclass(frozen=True)
class RankedQueries:
    """The ranked queries of one model, and the effect in each group of them."""

    queries: tuple[QueryPositions, ...]

    @cached_property
    def groups(self) -> dict[tuple[str, str], PositionEffect]:
        """The effect by (kind, name) of a group: all queries, those of documents read in full, and
        each length and language with queries."""
        groups = {
            (ALL, ""): list(self.queries),
            (WHOLE, ""): [query for query in self.queries if query.whole],
        }
        for bucket in LENGTH_BUCKETS:
            groups["length", bucket] = [
                query
                for query in self.queries
                if query.pair.document_tokens
                and length_bucket(query.pair.document_tokens) == bucket
            ]
        languages = sorted({query.pair.language or "" for query in self.queries})
        for language in languages if len(languages) > 1 else ():
            groups["language", language or "unknown"] = [
                query for query in self.queries if (query.pair.language or "") == language
            ]
        effects = {key: position_effect(queries) for key, queries in groups.items()}
        return {key: effect for key, effect in effects.items() if effect is not None}


@dataclass(frozen=True)
class PositionSummary:
    """The position effect of one model. `left_out` counts the pairs whose evidence the model reads
    in full at fewer than two positions; `failed` has the reasons why others have no ranks. `null`
    is the effect of moving another sentence; None if it was not computed."""

    model: ModelIdentity
    asked: PositionSubject
    ranked: RankedQueries
    effect: PositionEffect
    null: PositionEffect | None
    left_out: int
    failed: Mapping[str, str]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name

    @property
    def queries(self) -> tuple[QueryPositions, ...]:
        """The ranked queries."""
        return self.ranked.queries


def ranked_queries(
    pairs: Sequence[TextPair],
    relocations: Mapping[str, Relocation],
    ranks: Mapping[str, PositionRanks],
    positions: int,
) -> list[QueryPositions]:
    """The ranked queries of `pairs`: those that have both results, and whose evidence is read in
    full at two positions or more."""
    queries = (
        query_positions(pair, relocations[pair.pair_id], ranks[pair.pair_id], positions)
        for pair in pairs
        if pair.pair_id in relocations and pair.pair_id in ranks
    )
    return [query for query in queries if query is not None]


def no_effect(name: str, failed: Mapping[str, str], n: int) -> UserError:
    """The error for a model of whose `n` pairs none has ranks at two positions; `failed` has
    reasons by pair."""
    if len(failed) == n:
        return UserError(f"No pair could be ranked with {name}: {next(iter(failed.values()))}")
    return UserError(
        f"None of the {n:,} pairs has two positions where {name} reads the evidence whole: choose "
        "shorter documents, or a model with a longer context limit."
    )
