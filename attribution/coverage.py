"""What a model can read of a document: words that its vocabulary knows, before its limit.

A number about text that the model cannot read says little of the model's attention, so both counts
stand beside the numbers they weaken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Retriever, encode, reads_jointly, separate
from poslens.attribution.types import Attribution, EvidenceSpan, TextPair, TokenizedText

MAX_UNKNOWN = 0.1
"""Share of unknown tokens up to which a document counts as readable."""

UNKNOWN_NAMES = ("[UNK]", "<unk>")
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of a document's `tokens` read, `unknown` are not in the vocabulary: to the model they are all
    the same one. `evidence` is the share of the evidence's characters before the limit, None
    without evidence."""

    tokens: int
    unknown: int
    evidence: float | None

    @property
    def unknown_share(self) -> float:
        """Share of the tokens read; 1 where there is none."""
        return self.unknown / self.tokens if self.tokens else 1.0

    @property
    def evidence_cut(self) -> bool:
        """Whether some of the evidence lies behind the limit."""
        return self.evidence is not None and self.evidence < 1

    @property
    def readable(self) -> bool:
        """Whether the evidence is read whole and nearly all words are known."""
        return not self.evidence_cut and self.unknown_share <= MAX_UNKNOWN


def coverage(retriever: Retriever, pairs: Sequence[TextPair]) -> Iterator[list[Coverage]]:
    """Coverage of each pair's document, batch by batch; only the tokenizer runs.

    Raises:
        UserError: the model reads no text by itself: see `embedded`.
    """
    for start in range(0, len(pairs), _BATCH):
        yield _batch(retriever, pairs[start : start + _BATCH])


def of_attribution(attribution: Attribution, evidence: EvidenceSpan | None) -> Coverage:
    """As far as a stored result tells: a SentencePiece vocabulary does not name its unknown tokens
    there."""
    names = compress(attribution.document.texts, attribution.document.content)
    unknown = sum(name in UNKNOWN_NAMES for name in names)
    return _coverage(attribution.document, unknown, evidence)


def _batch(retriever: Retriever, pairs: Sequence[TextPair]) -> list[Coverage]:
    apart = None if reads_jointly(retriever) else separate(retriever)
    try:
        with retriever.lock:
            if apart is None:
                encoded = encode(retriever, pairs)[1]
            else:
                encoded = apart.encode_texts([pair.document for pair in pairs], "document")
    except UserError:  # a document without a token that is text
        if len(pairs) == 1:
            span = pairs[0].evidence
            return [Coverage(0, 0, None if span is None else 0.0)]
        return [coverage for pair in pairs for coverage in _batch(retriever, [pair])]
    unknown = _unknown_id(retriever)
    ids = encoded.features.get("input_ids") if unknown is not None else None
    coverages = []
    for b, (pair, text) in enumerate(zip(pairs, encoded.texts, strict=True)):
        count = 0
        if ids is not None:
            own = ids[b][encoded.offsets[b] :][: len(text)].cpu().numpy()
            count = int(np.sum((own == unknown) & text.content[: len(own)]))
        coverages.append(_coverage(text, count, pair.evidence))
    return coverages


def _unknown_id(retriever: Retriever) -> int | None:
    """The id of whatever the vocabulary lacks; None where it lacks nothing (bytes, BM25)."""
    encoder = getattr(retriever, "encoder", None)
    model = encoder("document") if encoder else getattr(retriever, "model", None)
    return getattr(getattr(model, "tokenizer", None), "unk_token_id", None)


def _coverage(text: TokenizedText, unknown: int, evidence: EvidenceSpan | None) -> Coverage:
    share = None
    if evidence is not None:
        # What stands behind the last token of a text read whole is white space.
        until = text.read_until if text.truncated else evidence.end
        length = evidence.end - evidence.start
        share = float(np.clip((until - evidence.start) / length, 0.0, 1.0))
    return Coverage(int(text.content.sum()), unknown, share)
