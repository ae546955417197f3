"""Stored results of studies whose items are neither pairs nor documents: cells of needle grids,
preferences of attribution methods, and explanations of ranks, one for each query and wanted
document."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.evaluation.needle import NeedleCell
from poslens.attribution.evaluation.preferences import Condition, Thirds
from poslens.attribution.evaluation.why_causes import Source, Why
from poslens.attribution.text import revision
from poslens.attribution.types import EvidenceSpan, Method, TextPair
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage.results import Key, Results
from poslens.cache.storage.schema import Schema, register

CELLS = register(Schema(NeedleCell, "needle", names={"n_repeated": "repeated"}))
PREFERENCES = register(Schema(Thirds, "preferences"))
EXPLANATIONS = register(Schema(Why, "why"))


@dataclass(frozen=True, slots=True)
class CellItem:
    """A length and a depth over a corpus; `corpus` is the fingerprint of its documents."""

    dataset: str
    length: int
    depth: float
    corpus: str


def needle_cells(root: Path) -> Results[CellItem, NeedleCell]:
    """The cells stored below a folder."""
    return Results(root, CELLS, key=_cell_key)


def cell_id(length: int, depth: float) -> str:
    """The item id of a cell among the results of its grid."""
    return f"{length} tokens, depth {depth:g}%"


def _cell_key(item: CellItem) -> Key:
    return Key(item.dataset, cell_id(item.length, item.depth), item.corpus)


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
    return Results(root, PREFERENCES, key=_method_key)


def method_id(method: Method, condition: Condition) -> str:
    """The item id of a method under a condition."""
    return f"{method.core}, {condition.name}"


def _method_key(item: MeasuredMethod) -> Key:
    parts = [item.fingerprint, *map(text_fingerprint, item.pairs)]
    digest = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]
    return Key(item.pairs[0].dataset, method_id(item.method, item.condition), digest)


@dataclass(frozen=True, slots=True)
class WhyItem:
    """A query and a document that it should retrieve; `corpus` is the fingerprint of all documents
    and judgments. `query_id` is empty if the query is not part of the data set."""

    dataset: str
    query_id: str
    query: str
    document_id: str
    corpus: str
    evidence: EvidenceSpan | None = None
    source: Source = "data set"
    language: str | None = None

    @property
    def name(self) -> str:
        """The item id among the results of a data set."""
        digest = hashlib.sha256(f"{self.query}\0{self.document_id}".encode("utf-8", "replace"))
        return f"{self.query_id[:200]} {digest.hexdigest()[:16]}".strip()


def explanations(root: Path) -> Results[WhyItem, Why]:
    """The explanations stored below one folder."""
    return Results(root, EXPLANATIONS, key=_why_key)


def _why_key(item: WhyItem) -> Key:
    span = item.evidence
    where = f"{span.start}-{span.end} {item.source}" if span else ""
    language = f"{item.language}{revision(item.language)}"
    return Key(item.dataset, item.name, f"{item.corpus}:{where}:{language}")
