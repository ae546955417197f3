"""Text coverage: how much of a document a model can read, by its vocabulary and context limit.

A number about text that the model cannot read says little about the model, so pages and tables
show both counts next to such numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Retriever, encode, reads_jointly, separate
from poslens.attribution.retrievers.embedding_hooks import EmbeddingHooks
from poslens.attribution.types import Attribution, EvidenceSpan, TextPair, TokenizedText

MAX_UNKNOWN = 0.1
"""Maximum share of unknown tokens in a readable document."""

UNKNOWN_NAMES = ("[UNK]", "<unk>")
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of one document. `unknown` of the `tokens` that the model reads are not in its
    vocabulary, and the model cannot distinguish them. `evidence` is the share of the evidence's
    characters within the context limit, None without evidence."""

    tokens: int
    unknown: int
    evidence: float | None

    @property
    def unknown_share(self) -> float:
        """Unknown tokens divided by tokens read; 1 if no token was read."""
        return self.unknown / self.tokens if self.tokens else 1.0

    @property
    def evidence_cut(self) -> bool:
        """Whether part of the evidence is past the context limit."""
        return self.evidence is not None and self.evidence < 1

    @property
    def readable(self) -> bool:
        """Whether all of the evidence is read and at most `MAX_UNKNOWN` of tokens are unknown."""
        return not self.evidence_cut and self.unknown_share <= MAX_UNKNOWN


def coverage(retriever: Retriever, pairs: Sequence[TextPair]) -> Iterator[list[Coverage]]:
    """Coverage of each pair's document, batch by batch. Runs only the tokenizer.

    Raises:
        UserError: the model has no tokenizer here; `embedded` states the reason.
    """
    for start in range(0, len(pairs), _BATCH):
        yield _batch(retriever, pairs[start : start + _BATCH])


def of_attribution(attribution: Attribution, evidence: EvidenceSpan | None) -> Coverage:
    """Coverage computed from a stored result. Unknown tokens of a SentencePiece vocabulary can't be
    recognized in it and count as known."""
    names = compress(attribution.document.texts, attribution.document.content)
    unknown = sum(name in UNKNOWN_NAMES for name in names)
    return _coverage(attribution.document, unknown, evidence)


def _batch(retriever: Retriever, pairs: Sequence[TextPair]) -> list[Coverage]:
    apart = None if reads_jointly(retriever) else separate(retriever)
    try:
        if apart is None:
            encoded = encode(retriever, pairs)[1]
        else:
            encoded = apart.encode_texts([pair.document for pair in pairs], "document")
    except UserError:  # a document without text tokens
        if len(pairs) == 1:
            span = pairs[0].evidence
            return [Coverage(0, 0, None if span is None else 0.0)]
        return [coverage for pair in pairs for coverage in _batch(retriever, [pair])]
    # A vocabulary that covers everything (bytes, BM25) has no id of unknown tokens.
    unknown: int | None = None
    if isinstance(retriever, EmbeddingHooks):
        unknown = retriever.of("document").model.tokenizer.unk_token_id
    ids = encoded.features.get("input_ids") if unknown is not None else None
    coverages = []
    for b, (pair, text) in enumerate(zip(pairs, encoded.texts, strict=True)):
        count = 0
        if ids is not None:
            row = encoded.row(ids, b).cpu().numpy()
            count = int(np.sum((row == unknown) & text.content[: len(row)]))
        coverages.append(_coverage(text, count, pair.evidence))
    return coverages


def _coverage(text: TokenizedText, unknown: int, evidence: EvidenceSpan | None) -> Coverage:
    share = None if evidence is None else text.evidence_read(evidence)
    return Coverage(int(text.content.sum()), unknown, share)
