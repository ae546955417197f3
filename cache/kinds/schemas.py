"""The schema of each kind of result, by its name in the store's files."""

from __future__ import annotations

from typing import Any

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.types import Method
from poslens.cache.kinds import (
    bias,
    interventions,
    needles,
    position_ranks,
    preferences,
    rankings,
    why,
)
from poslens.cache.kinds.audit import SENTENCE_RANKS, TRUNCATIONS
from poslens.cache.kinds.chunk_plan import DOCUMENT_CHUNKS, ENCODING_TIMES
from poslens.cache.kinds.faithfulness import FAITHFULNESS, RANDOM_ORDER, RANDOM_ORDERS, schema_of
from poslens.cache.kinds.late_chunks import CHUNK_VECTORS
from poslens.cache.storage.schema import Schema

_SCHEMAS: dict[str, Schema[Any]] = {
    **interventions.SCHEMAS,
    "bias_scores": bias.SCHEMA,
    "chunk_plan": DOCUMENT_CHUNKS,
    "encoding_time": ENCODING_TIMES,
    "evidence_read": rankings.READS,
    "late_chunks": CHUNK_VECTORS,
    "needle": needles.SCHEMA,
    "position_ranks": position_ranks.SCHEMA,
    "preferences": preferences.SCHEMA,
    "others": interventions.OTHER_SCORES,
    "ranking": rankings.RANKINGS,
    "reachability": SENTENCE_RANKS,
    "search": rankings.SEARCHES,
    "truncation": TRUNCATIONS,
    "why": why.SCHEMA,
}


def schema_for(kind: str, method: Method) -> Schema[Any] | None:
    """The schema of a kind of results under a method; None if this version doesn't support the
    kind."""
    if not kind.startswith(FAITHFULNESS):
        return _SCHEMAS.get(kind)
    try:
        parameters = ErasureParameters.parse(kind.removeprefix(FAITHFULNESS))
    except UserError:
        return None
    return RANDOM_ORDERS if method == RANDOM_ORDER else schema_of(parameters)
