"""Stored ranks of documents whose evidence was relocated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.evaluation.position_effect import PositionRanks
from poslens.attribution.types import TextPair
from poslens.cache.kinds.interventions import cause_key
from poslens.cache.storage.results import Key, Results
from poslens.cache.storage.schema import Schema, register

SCHEMA = register(
    Schema(PositionRanks, "position_ranks", given=lambda owner: {"pair_id": owner.item})
)


@dataclass(frozen=True, slots=True)
class RankedPair:
    """A pair whose document is ranked among a corpus; `corpus` is the fingerprint of the corpus."""

    pair: TextPair
    corpus: str


def position_ranks(root: Path) -> Results[RankedPair, PositionRanks]:
    """The ranks stored below a folder."""
    return Results(root, SCHEMA, key=_key)


def _key(item: RankedPair) -> Key:
    key = cause_key(item.pair)
    return key._replace(fingerprint=f"{key.fingerprint}:{item.corpus}")
