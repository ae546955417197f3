"""Cells of needle grids, kept beside a model's other results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attribution.evaluation.needle import NeedleCell
from cache.storage.codec import Fields
from cache.storage.results import Key, Results


@dataclass(frozen=True, slots=True)
class CellItem:
    """A length and depth over a corpus; `corpus` is the fingerprint of its documents."""

    dataset: str
    length: int
    depth: float
    corpus: str


def needle_cells(root: Path) -> Results[CellItem, NeedleCell]:
    """What is kept of needle grids below one folder."""
    return Results(root, "needle", key=_key, pack=_pack, unpack=_unpack)


def item_id(length: int, depth: float) -> str:
    """What a cell is called among the results of its grid."""
    return f"{length} tokens, depth {depth:g}%"


def _key(item: CellItem) -> Key:
    return Key(item.dataset, item_id(item.length, item.depth), item.corpus)


def _pack(found: NeedleCell) -> Fields:
    return {
        "ranks": list(found.ranks),
        "tokens": list(found.tokens),
        "repeated": found.n_repeated,
    }


def _unpack(fields: Fields) -> NeedleCell:
    ranks, tokens = _whole(fields["ranks"]), _whole(fields["tokens"])
    (repeated,) = _whole([fields["repeated"]])
    n = len(ranks)
    if not n or len(tokens) != n or not all(1 <= rank <= n for rank in ranks):
        raise ValueError("no ranks of a cell")
    return NeedleCell(ranks, tokens, repeated)


def _whole(values: Sequence[object]) -> tuple[int, ...]:
    if not all(type(value) is int for value in values):
        raise TypeError("no whole numbers")
    return tuple(values)  # type: ignore[arg-type]  # looked at one by one
