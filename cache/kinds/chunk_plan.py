"""Stored results of chunk plans: one row per setting and document, so that a run can be resumed.
Also stored vectors of late chunks, by text digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.datasets.corpus import Collection, Query
from poslens.attribution.evaluation.chunk_plan import (
    DocumentChunks,
    EncodingTime,
    IndexSetting,
    Tried,
)
from poslens.cache.kinds.rankings import CorpusItems, fingerprint
from poslens.cache.storage.results import Key, Results, itself
from poslens.cache.storage.rows import ENCODING_TIME
from poslens.cache.storage.schema import Packed, Schema, register
from poslens.cache.storage.store import ModelKey

DOCUMENT_CHUNKS = register(
    Schema(DocumentChunks, "chunk_plan", given=lambda owner: {"document_id": owner.item})
)
ENCODING_TIMES = register(Schema(EncodingTime, ENCODING_TIME))


class ChunkPlanStore(CorpusItems):
    """Chunk plans of one collection below one folder."""

    def __init__(self, root: Path, collection: Collection) -> None:
        evidence = hashlib.sha256(fingerprint(collection).encode())
        for query in collection.queries:
            row = f"{query.query_id!r} {query.span} {query.evidence_pair!r}"
            if len(query.relevant) > 1:  # the document that the query belongs to (`queries`)
                row += f" {query.document!r}"
            evidence.update(f"{row}\n".encode())
        super().__init__(root, collection, evidence.hexdigest()[:16])
        self.documents: Results[Key, DocumentChunks] = Results(root, DOCUMENT_CHUNKS, key=itself)
        self.times: Results[Key, EncodingTime] = Results(root, ENCODING_TIMES, key=itself)

    @cached_property
    def queries(self) -> dict[str, list[tuple[Query, tuple[int, ...]]]]:
        """The queries that each document answers, by document key, each with the numbers of all
        documents that answer it: the one with the evidence if known, else the relevant ones.
        Queries whose own document is excluded from their ranking are omitted."""
        number_of = {key: number for number, key in enumerate(self.keys)}
        answered: dict[str, list[tuple[Query, tuple[int, ...]]]] = {}
        for query in self.collection.queries:
            if self.collection.skips_own_id and query.query_id in number_of:
                continue
            evidence = query.evidence_document
            keys = sorted(query.relevant) if evidence is None else [evidence]
            numbers = tuple(number_of[key] for key in keys if key in number_of)
            if numbers:
                answered.setdefault(self.keys[numbers[0]], []).append((query, numbers))
        return answered

    def missing(self, model: ModelKey, setting: IndexSetting, *, retry: bool = False) -> list[Key]:
        """Documents with neither a result nor, unless `retry`, a failure."""
        return self.documents.missing(model, setting.method, self.items, retry=retry)

    def timed_item(self, device: str) -> Key:
        """The key of stored encoding times on a device."""
        return Key(self.collection.name, device, self.fingerprint)

    def tried(
        self, model: ModelKey, settings: Sequence[IndexSetting], device: str
    ) -> tuple[list[Tried], dict[str, str]]:
        """The result of each setting that has one, and the reasons why others failed."""
        results, reasons = [], {}
        for setting in settings:
            stored = self.documents.select(model, setting.method, self.items)
            if stored.results:
                time = self.times.get(model, setting.method, self.timed_item(device))
                results.append(Tried(setting, stored.results, time))
            elif stored.failed:
                reasons[str(setting)] = next(iter(stored.failed.values()))
        return results, reasons


@dataclass(frozen=True, slots=True)
class ChunkVectors:
    """Vectors [W, H] of a text's late chunks; `width` is H."""

    width: int
    vectors: Annotated[NDArray[np.float32], Packed()]

    def __post_init__(self) -> None:
        object.__setattr__(self, "vectors", self.vectors.reshape(-1, self.width))


CHUNK_VECTORS = register(Schema(ChunkVectors, "late_chunks"))


def late_chunks(root: Path) -> Results[str, ChunkVectors]:
    """The vectors stored below a folder."""
    return Results(root, CHUNK_VECTORS, key=lambda digest: Key("", digest, ""))
