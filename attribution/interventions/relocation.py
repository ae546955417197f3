"""Relocation: the evidence moves to other positions in its document, all other text stays the same,
and the score is measured at each position. Differences are caused by position alone
(docs/methods.md, section 8).

Sentences move, but the white space between the n-th and the next sentence stays where it is, so
length and paragraphs do not change. Moved sentences can refer to text that no longer precedes them
("this", "it"); the causal curve includes that effect.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Retriever, encode
from poslens.attribution.retrievers.scoring import Known, score_texts
from poslens.attribution.text import (
    listed,
    overlapping,
    require_sentences,
    script_without_sentences,
    sentences,
)
from poslens.attribution.types import (
    ROUNDING,
    Array,
    EvidenceSpan,
    Method,
    TextPair,
    TokenizedText,
    as_array,
    set_arrays,
)

VERSION = 1
N_POSITIONS = 11


def relocation_method(positions: int = N_POSITIONS) -> Method:
    """The method under which results are stored and shown."""
    return Method("relocation", {"positions": positions, "version": VERSION})


@dataclass(frozen=True, slots=True)
class Pieces:
    """A document as sentences and the separators between them: gaps[0] before the first sentence,
    gaps[i] before sentence i, gaps[-1] after the last."""

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]

    @classmethod
    def of(cls, text: str, spans: Sequence[tuple[int, int]]) -> Pieces:
        """Split a text into these spans."""
        ends = [0, *(end for _, end in spans)]
        starts = [*(start for start, _ in spans), len(text)]
        return cls(
            tuple(text[a:b] for a, b in spans),
            tuple(text[a:b] for a, b in zip(ends, starts, strict=True)),
        )

    def joined(self, order: Sequence[int]) -> str:
        """The text with the sentences in another order and the separators in place."""
        placed = "".join(
            gap + self.sentences[i] for gap, i in zip(self.gaps[:-1], order, strict=True)
        )
        return placed + self.gaps[-1]

    def starts(self, order: Sequence[int]) -> list[int]:
        """Offset of each sentence in that order."""
        starts, end = [], 0
        for gap, i in zip(self.gaps[:-1], order, strict=True):
            starts.append(end + len(gap))
            end = starts[-1] + len(self.sentences[i])
        return starts


def movable(pairs: Sequence[TextPair]) -> tuple[list[TextPair], str]:
    """The pairs with evidence in documents that can be split into sentences, and a remark about
    those that are excluded because they cannot (empty if there are none)."""
    marked = [pair for pair in pairs if pair.evidence is not None]
    scripts = Counter(script_without_sentences(pair.document) for pair in marked)
    chosen_pairs = [pair for pair in marked if not script_without_sentences(pair.document)]
    del scripts[""]
    if not scripts:
        return chosen_pairs, ""
    names = ", ".join(f"{n:,} in {script}" for script, n in sorted(scripts.items()))
    counts = f" ({names})" if len(scripts) > 1 else ""
    return chosen_pairs, (
        f"{scripts.total():,} of {len(marked):,} pairs with evidence cannot be used{counts}: "
        f"PosLens cannot split {listed(sorted(scripts))} texts into sentences."
    )


def require_movable(data: DataSet) -> tuple[list[TextPair], str]:
    """As `movable`, but refuses a data set without such pairs.

    Raises:
        UserError: no pair has evidence that can be moved.
    """
    usable, remark = movable(data.pairs)
    if not usable:
        raise UserError(
            remark
            or f"No pair of {data.title} has evidence that can be moved: choose a data set with "
            "evidence spans."
        )
    return usable, remark


@dataclass(frozen=True, slots=True)
class Variant:
    """The document with the evidence at one position; `position` is the mid-point of the evidence
    relative to the text's length in characters."""

    text: str
    evidence: EvidenceSpan

    @property
    def position(self) -> float:
        """In [0, 1]."""
        return self.evidence.midpoint(len(self.text))


def relocated(pair: TextPair, positions: int = N_POSITIONS) -> tuple[list[Variant], str]:
    """The pair's document with the evidence at `positions` positions from first to last, spread
    evenly over the sentences; fewer if the document has fewer. All sentences that the evidence
    touches move as one block.

    Also a remark about what was moved, empty if the evidence is one sentence and moved to as many
    positions as requested.

    Raises:
        UserError: the pair has no evidence, or the document has no other sentence.
    """
    if pair.evidence is None:
        raise UserError(
            f"{pair.label} has no evidence span, so there is nothing to move: choose a pair with "
            "evidence, or mark a passage of the document as evidence."
        )
    require_sentences(pair.document)
    spans, span = sentences(pair.document, pair.language), pair.evidence
    touched = overlapping(spans, span)
    if len(spans) < 2:
        raise UserError(
            "The document is one sentence, so its evidence can't be moved: choose a document of at "
            "least two sentences."
        )
    if not touched:
        raise UserError("The evidence has no words: mark a passage with words.")
    others = [i for i in range(len(spans)) if i not in touched]
    if not others:
        raise UserError(
            "The evidence covers every sentence of the document, so it can't be moved: mark a "
            "shorter passage."
        )
    parts = Pieces.of(pair.document, spans)
    places = sorted({round(k * len(others) / (positions - 1)) for k in range(positions)})
    variants = []
    for place in places:
        order = [*others[:place], *touched, *others[place:]]
        starts = parts.starts(order)
        end = starts[place + len(touched) - 1] + len(parts.sentences[touched[-1]])
        variants.append(Variant(parts.joined(order), EvidenceSpan(starts[place], end)))
    notes = []
    if len(touched) > 1:
        notes.append(f"the evidence touches {len(touched)} sentences, which were moved together")
    elif spans[touched[0]] != (span.start, span.end):
        notes.append("the evidence is not exactly one sentence; the sentence was moved whole")
    if len(places) < positions:
        notes.append(f"{len(spans)} sentences have {len(places)} places, not {positions}")
    return variants, "; ".join(notes)


def require_shares(*shares: ArrayLike) -> None:
    """Check that positions and shares are in [0, 1].

    Raises:
        ValueError: a number is outside [0, 1] by more than the rounding of float32.
    """
    for values in map(np.asarray, shares):
        if not ((values >= 0) & (values <= 1 + ROUNDING)).all():
            raise ValueError("a share outside 0 to 1")


@dataclass(frozen=True, slots=True)
class Relocation:
    """A relocation curve: `scores` [K] with the evidence's mid-point at `positions` [K], in [0, 1].

    `read` [K] is the share of the evidence's characters that the model read there; it is below 1
    past the context limit. `read_share` is the share of the unchanged document's characters that
    was read, `original` its score, and `evidence` its evidence's position.

    A score falls where the evidence is not read, which is not a position bias. Only positions where
    the evidence is read whole count as effects of position; the others are summarized by `lost`.
    """

    model: str
    pair_id: str
    positions: Array
    scores: Array
    read: Array
    original: float
    evidence: float
    read_share: float
    note: str
    seconds: float

    def __post_init__(self) -> None:
        shape = (len(self.positions),)
        set_arrays(self, "a score", positions=shape, scores=shape, read=shape)
        require_shares(self.positions, self.read, self.read_share, self.evidence)
        if not shape[0] or not self.read_share or self.seconds < 0:
            raise ValueError("no places of a document that was read")

    @property
    def whole(self) -> NDArray[np.bool_]:
        """The positions [K] at which the evidence was read whole."""
        return self.read >= 1

    @property
    def within(self) -> NDArray[np.float64]:
        """The positions where the evidence was read whole, relative to what the model read (the
        axis of every curve), in [0, 1]."""
        at = self.positions[self.whole].astype(np.float64)
        return np.minimum(at / self.read_share, 1.0)

    @property
    def changes(self) -> NDArray[np.float64]:
        """Scores at the positions `within`, minus their mean; zeros if they differ only by
        rounding."""
        scores = self.scores[self.whole].astype(np.float64)
        if not len(scores) or np.ptp(scores) <= ROUNDING * np.abs(scores).max():
            return np.zeros_like(scores)
        centered: NDArray[np.float64] = scores - scores.mean()
        return centered

    def curve(self, bins: int) -> Array | None:
        """The changes at the centers of `bins` bins of what the model read, minus their mean.
        Linear between the positions where the evidence was read whole, constant beyond the first
        and the last; None for fewer than two such positions."""
        if self.whole.sum() < 2:
            return None
        curve = np.interp((np.arange(bins) + 0.5) / bins, self.within, self.changes)
        return as_array(curve - curve.mean(), (bins,), "a curve")

    @property
    def last_minus_first(self) -> float | None:
        """Mean score with the evidence in the last third of what the model reads minus that in the
        first, over positions where it is read whole, in the score's units: negative is primacy,
        positive recency. None if one of the thirds has no such position."""
        at, changes = self.within, self.changes
        first, last = changes[at < 1 / 3], changes[at > 2 / 3]
        return float(last.mean() - first.mean()) if len(first) and len(last) else None

    @property
    def lost(self) -> float | None:
        """What the score loses past the context limit: its mean over the positions where the
        evidence is read whole minus that over the others. None without positions of both kinds."""
        if self.whole.all() or not self.whole.any():
            return None
        scores = self.scores.astype(np.float64)
        return float(scores[self.whole].mean() - scores[~self.whole].mean())


def relocation_difference(
    relocations: Sequence[Relocation], documents: Sequence[Hashable]
) -> Estimate | None:
    """The mean last-minus-first difference of pairs, in the score's units; its interval resamples
    their `documents`. None if no pair has one."""
    differences = [
        (difference, document)
        for each, document in zip(relocations, documents, strict=True)
        if (difference := each.last_minus_first) is not None
    ]
    return estimate(
        np.array([[difference] for difference, _ in differences]),
        [document for _, document in differences],
    )


def relocation(
    retriever: Retriever,
    pair: TextPair,
    positions: int = N_POSITIONS,
    *,
    cached: Known | None = None,
) -> Relocation:
    """Score `pair` with its evidence at each position. Encodings in `cached` are reused.

    Raises:
        UserError: see `relocated`, or a text cannot be scored.
        Stopped: canceled (`stoppable`).
    """
    started = time.perf_counter()
    variants, note = relocated(pair, positions)
    assert pair.evidence is not None
    texts = [(pair.query, text) for text in (pair.document, *(each.text for each in variants))]
    scores = score_texts(retriever, texts, cached=cached)
    whole = tokens_of(retriever, pair.query, pair.document)
    read = evidence_shares(variants, whole, lambda text: tokens_of(retriever, pair.query, text))
    return Relocation(
        model=retriever.name,
        pair_id=pair.pair_id,
        positions=np.array([each.position for each in variants], dtype=np.float32),
        scores=scores[1:],
        read=np.array(read, dtype=np.float32),
        original=float(scores[0]),
        evidence=pair.evidence.midpoint(len(pair.document)),
        read_share=whole.share_read(len(pair.document)),
        note=note,
        seconds=time.perf_counter() - started,
    )


def tokens_of(retriever: Retriever, query: str, document: str) -> TokenizedText:
    """The tokens that the model reads of a document with this query."""
    return encode(retriever, [TextPair("", query, document)])[1].texts[0]


def evidence_shares(
    variants: Sequence[Variant], whole: TokenizedText, tokens: Callable[[str], TokenizedText]
) -> list[float]:
    """The share of the evidence that is read in each variant of a text; `whole` are the tokens of
    the unchanged text, and `tokens` returns those of other texts."""
    # Reordered sentences of a text that fits also fit, up to a token or two at the seams.
    if not whole.truncated and len(whole) <= 0.75 * whole.max_length:
        return [1.0] * len(variants)
    return [tokens(variant.text).evidence_read(variant.evidence) for variant in variants]


def tie_range(scores: Array | float) -> tuple[Any, Any]:
    """The lowest and the highest score that count as equal to each of these (`ROUNDING`)."""
    rounding = ROUNDING * np.abs(scores)
    return scores - rounding, scores + rounding


def rank_among(score: float, others: Sequence[float] | Array) -> int:
    """Rank from 1 of a document with `score` among `others`; equal scores share the best rank."""
    return 1 + int(np.count_nonzero(np.asarray(others) > tie_range(score)[1]))
