"""Stored measurements of what attribution methods prefer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.evaluation.preferences import Condition, Thirds
from poslens.attribution.types import Method, TextPair
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage.results import Key, Results
from poslens.cache.storage.schema import Schema, register

SCHEMA = register(Schema(Thirds, "preferences"))


@dataclass(frozen=True, slots=True)
class MeasuredMethod:
    """A method under one condition; `pairs` have the queries of that condition, and `fingerprint`
    identifies its model."""

    method: Method
    condition: Condition
    pairs: tuple[TextPair, ...]
    fingerprint: str


def preferences(root: Path) -> Results[MeasuredMethod, Thirds]:
    """The measurements stored below a folder."""
    return Results(root, SCHEMA, key=_key)


def item_id(method: Method, condition: Condition) -> str:
    """The item id of a method under a condition."""
    return f"{method.core}, {condition.name}"


def _key(item: MeasuredMethod) -> Key:
    parts = [item.fingerprint, *map(text_fingerprint, item.pairs)]
    digest = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]
    return Key(item.pairs[0].dataset, item_id(item.method, item.condition), digest)
