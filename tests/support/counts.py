"""A minimal kind of result that a store can keep besides attributions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.types import TextPair
from poslens.cache.storage.results import Results, pair_key
from poslens.cache.storage.schema import Schema


@dataclass(frozen=True)
class Count:
    """A number about a pair."""

    n: int


COUNTS = Schema(Count, "test")


def counts(root: Path, schema: Schema[Count] = COUNTS) -> Results[TextPair, Count]:
    """A store of such results in a folder, of a kind that no version of PosLens reads."""
    return Results(root, schema, key=pair_key)
