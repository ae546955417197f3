"""Stored explanations of ranks: one for each query and wanted document."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from poslens.attribution.evaluation.why_causes import Source, Why
from poslens.attribution.types import EvidenceSpan
from poslens.cache.storage.results import Key, Results
from poslens.cache.storage.schema import Schema, register

SCHEMA = register(Schema(Why, "why"))


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
    return Results(root, SCHEMA, key=_key)


def _key(item: WhyItem) -> Key:
    span = item.evidence
    where = f"{span.start}-{span.end} {item.source}" if span else ""
    return Key(item.dataset, item.name, f"{item.corpus}:{where}:{item.language}")
