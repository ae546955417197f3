"""Stored audit results: one row per document, so that an interrupted audit can be resumed."""

from __future__ import annotations

from pathlib import Path

from poslens.attribution.datasets.corpus import Collection
from poslens.attribution.evaluation.audit import SentenceRanks, audit_method
from poslens.attribution.evaluation.chunks import Chunks
from poslens.attribution.evaluation.truncation import TRUNCATION, Truncation
from poslens.attribution.text import revision
from poslens.cache.kinds.rankings import CorpusItems, fingerprint
from poslens.cache.storage.results import Key, Results, Stored, itself
from poslens.cache.storage.schema import Schema, register
from poslens.cache.storage.store import ModelKey

N_PROBED = 3
"""Number of texts, the longest ones, for which the truncation point is measured."""

SENTENCE_RANKS = register(
    Schema(
        SentenceRanks,
        "reachability",
        given=lambda owner: {"document_id": owner.item},
        names={"positions": "places"},
    )
)
TRUNCATIONS = register(Schema(Truncation, "truncation"))


class AuditStore(CorpusItems):
    """Audits of one collection below one folder."""

    def __init__(self, root: Path, collection: Collection) -> None:
        revisions = max((revision(code) for _, code in collection.survey.languages), default="")
        super().__init__(root, collection, fingerprint(collection) + revisions)
        self.ranks: Results[Key, SentenceRanks] = Results(root, SENTENCE_RANKS, key=itself)
        self.probed: Results[Key, Truncation] = Results(root, TRUNCATIONS, key=itself)

    @property
    def probed_items(self) -> list[Key]:
        """The keys of stored truncations, by text."""
        return [
            Key(self.collection.name, f"text {number}", self.fingerprint)
            for number in range(1, N_PROBED + 1)
        ]

    def select(self, model: ModelKey, chunks: Chunks) -> Stored[SentenceRanks]:
        """Stored ranks in corpus order, and the documents that failed, with reasons."""
        return self.ranks.select(model, audit_method(chunks), self.items)

    def missing(self, model: ModelKey, chunks: Chunks) -> int:
        """The number of documents with neither a result nor a failure."""
        return len(self.ranks.missing(model, audit_method(chunks), self.items))

    def truncations(self, model: ModelKey) -> list[Truncation]:
        """Where the model truncates each text for which this was measured."""
        return list(self.probed.select(model, TRUNCATION, self.probed_items).results.values())
