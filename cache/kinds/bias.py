"""Stored scores of the document pairs of bias tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from poslens.attribution.evaluation.bias_tests import DocumentPair, PairScores
from poslens.attribution.retrievers.base import Retriever, encode
from poslens.attribution.retrievers.scoring import Known, score_texts
from poslens.attribution.types import Method
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage.results import Key, Results
from poslens.cache.storage.schema import Schema, register

BIAS_SCORES = Method("bias_scores", {"version": 2})
"""The store's key for these scores; increment the version when the scores change."""

SCHEMA = register(Schema(PairScores, "bias_scores"))

CPU_AHEAD, GPU_AHEAD = 4, 64
"""Document pairs that are scored together, on a CPU and on a GPU: on a CPU a larger batch is no
faster and makes the time estimate jump."""


def store(root: Path) -> Results[DocumentPair, PairScores]:
    """The scores stored below a cache's folder."""
    return Results(root, SCHEMA, key=_key)


def _key(item: DocumentPair) -> Key:
    texts = f"{text_fingerprint(item.first)}:{text_fingerprint(item.second)}"
    return Key(item.first.dataset, item.item_id, texts)


def score(
    retriever: Retriever, items: Sequence[DocumentPair], cached: Known | None = None
) -> list[PairScores]:
    """Both scores of each of `items`, and how much of the evidence was read for them.
    Representations of texts in `cached` are not computed again.

    Raises:
        Stopped: canceled (`stoppable`).
        UserError: a text can't be scored.
    """
    texts = [pair for item in items for pair in (item.first, item.second)]
    asked = [(text.query, text.document) for text in texts]
    scores = score_texts(retriever, asked, cached=cached).tolist()
    read = encode(retriever, texts)[1].texts
    shares = [
        1.0 if pair.evidence is None else tokens.evidence_read(pair.evidence)
        for pair, tokens in zip(texts, read, strict=True)
    ]
    return [
        PairScores(
            scores[i],
            scores[i + 1],
            truncated=read[i].truncated or read[i + 1].truncated,
            read=min(shares[i : i + 2]),
        )
        for i in range(0, len(texts), 2)
    ]


def ahead(retriever: Retriever) -> int:
    """The number of document pairs that are scored together."""
    return CPU_AHEAD if retriever.device.type == "cpu" else GPU_AHEAD
