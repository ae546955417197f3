"""Stored cells of needle grids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.evaluation.needle import NeedleCell
from poslens.cache.storage.results import Key, Results
from poslens.cache.storage.schema import Schema, register

SCHEMA = register(Schema(NeedleCell, "needle", names={"n_repeated": "repeated"}))


@dataclass(frozen=True, slots=True)
class CellItem:
    """A length and a depth over a corpus; `corpus` is the fingerprint of its documents."""

    dataset: str
    length: int
    depth: float
    corpus: str


def needle_cells(root: Path) -> Results[CellItem, NeedleCell]:
    """The cells stored below a folder."""
    return Results(root, SCHEMA, key=_key)


def item_id(length: int, depth: float) -> str:
    """The item id of a cell among the results of its grid."""
    return f"{length} tokens, depth {depth:g}%"


def _key(item: CellItem) -> Key:
    return Key(item.dataset, item_id(item.length, item.depth), item.corpus)
