"""Ablation: how much the score falls without one part of the document, for each part
(docs/methods.md, section 8).

A part is deleted, so the following text moves forward; or its tokens' embeddings are replaced with
the padding token's, as in occlusion; or it is replaced with neutral filler of as many tokens. The
last two move nothing.

Only what the model read is changed. If a part of a longer document were deleted, unread text would
move into view, and the effect would mix both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from poslens.attribution.errors import UserError
from poslens.attribution.interventions.filler import filler, filler_note
from poslens.attribution.interventions.relocation import require_shares, tokens_of
from poslens.attribution.methods.perturbation import Kept, Perturbed
from poslens.attribution.retrievers.base import Retriever, reads_jointly
from poslens.attribution.retrievers.scoring import Known, score_texts
from poslens.attribution.text import unit_of, words
from poslens.attribution.types import Array, Method, TextPair, TokenizedText, as_array, set_arrays

Replacement = Literal["delete", "mask", "filler"]
REPLACEMENTS: tuple[Replacement, ...] = ("delete", "mask", "filler")
N_BINS = 20
VERSION = 2

Span = tuple[int, int]


def ablation_method(by: Replacement = "delete", bins: int = N_BINS) -> Method:
    """The method under which results are stored and shown.

    Raises:
        UserError: another replacement.
    """
    if by not in REPLACEMENTS:
        raise UserError(f"by can't be {by!r}: choose from {', '.join(REPLACEMENTS)}.")
    return Method("ablation", {"by": by, "bins": bins, "version": VERSION})


@dataclass(frozen=True, slots=True)
class Ablation:
    """`effects` [B]: s(q, d) - s(q, d without part b), in units of the score; positive if the part
    raised the score. `spans` [B, 2] are the parts' characters; together they are what the model
    read, `read_share` of the document's characters. `edges` [B + 1] are the parts' boundaries as
    relative token positions, the axis of every curve. `score` is the score of what was read."""

    model: str
    pair_id: str
    by: Replacement
    spans: tuple[Span, ...]
    edges: Array
    effects: Array
    score: float
    read_share: float
    note: str
    seconds: float

    def __post_init__(self) -> None:
        set_arrays(self, "a score", effects=(len(self.spans),))
        set_arrays(self, "a position", edges=(len(self.spans) + 1,))
        require_edges(self.edges)
        require_shares(self.read_share)
        if not all(0 <= a <= b for a, b in self.spans) or self.seconds < 0:
            raise ValueError("no parts of a document")

    def curve(self, bins: int) -> Array:
        """The effects of the parts at `bins` points of what was read."""
        return stepped(self.edges, self.effects, bins)


def require_edges(edges: Array) -> None:
    """Check part boundaries.

    Raises:
        ValueError: they are outside [0, 1], fewer than two, or not in ascending order.
    """
    require_shares(edges)
    if len(edges) < 2 or (np.diff(edges) < 0).any():
        raise ValueError("no edges of parts")


def stepped(edges: Array, values: Array, bins: int) -> Array:
    """A curve [bins] of `values` [B], each constant from one of `edges` [B + 1] to the next."""
    filled = np.concatenate(([0.0], np.cumsum(values * np.diff(edges))))
    at_edges = np.interp(np.linspace(0, 1, bins + 1), edges, filled)
    return as_array(np.diff(at_edges) * bins, (bins,), "a curve")


def parts_of(
    document: str, until: int, bins: int = N_BINS, borders: Sequence[int] | None = None
) -> tuple[Span, ...]:
    """The document's first `until` characters in `bins` parts of about equal length, cut at
    `borders`, by default the beginnings of words. Fewer parts if there are fewer borders."""
    starts = [start for start, _ in words(document)] if borders is None else list(borders)
    starts = [start for start in starts if start < until]
    targets = [until * b / bins for b in range(1, bins)]
    edges = {starts[int(np.argmin(np.abs(np.array(starts) - at)))] for at in targets}
    inner = sorted(edges - {starts[0], 0})
    return tuple(pairwise([0, *inner, until]))


def without(document: str, span: Span) -> str:
    """The document with one part deleted."""
    return document[: span[0]] + document[span[1] :]


def ablation(
    retriever: Retriever,
    pair: TextPair,
    by: Replacement = "delete",
    bins: int = N_BINS,
    *,
    cached: Known | None = None,
) -> Ablation:
    """The effect of each part of the pair's document on its score. Encodings in `cached` (of the
    texts, and of the document without its parts) are reused.

    Raises:
        UserError: the document has only one word, or a text cannot be scored.
        Stopped: canceled (`stoppable`).
    """
    started = time.perf_counter()
    tokens = tokens_of(retriever, pair.query, pair.document)
    share = tokens.share_read(len(pair.document))
    until = tokens.read_until if tokens.truncated else len(pair.document)
    spans = parts_of(pair.document, until, bins)
    if len(spans) < 2:
        raise UserError(
            "The document is one word, so there is no part to remove: choose a longer one."
        )
    notes = [] if len(spans) == bins else [f"the document has {len(spans)} parts, not {bins}"]
    if by == "mask":
        score, changed = _masked(retriever, pair, spans, cached)
    else:
        if by == "filler":
            notes += filter(None, [filler_note(pair.language)])
            texts = _filled(retriever, pair, tokens, spans)
        else:
            texts = [without(pair.document[:until], span) for span in spans]
        asked = [(pair.query, text) for text in (pair.document[:until], *texts)]
        scores = score_texts(retriever, asked, cached=cached)
        score, changed = float(scores[0]), scores[1:]
    return Ablation(
        model=retriever.name,
        pair_id=pair.pair_id,
        by=by,
        spans=spans,
        edges=token_edges(tokens, spans),
        effects=np.float32(score) - changed,
        score=score,
        read_share=share,
        note="; ".join(notes),
        seconds=time.perf_counter() - started,
    )


def token_edges(tokens: TokenizedText, spans: Sequence[Span]) -> Array:
    """Boundaries of consecutive spans [B + 1], as shares of the tokens."""
    starts = tokens.starts[tokens.content]
    inner = np.searchsorted(starts, [start for start, _ in spans[1:]]) / len(starts)
    return as_array([0.0, *inner, 1.0], (len(spans) + 1,), "a position")


def _masked(
    retriever: Retriever, pair: TextPair, spans: tuple[Span, ...], cached: Known | None
) -> tuple[float, Array]:
    """Scores with the padding token's embedding in place of each part's tokens. A token belongs to
    the part in which it begins."""
    # A model that reads both texts together encodes the document anew for each query.
    shared = None if reads_jointly(retriever) else cached
    key = ("masked", pair.document, spans)
    state = None if shared is None else Kept(shared.find(key) or [])
    with retriever.lock, torch.no_grad():
        document = Perturbed(retriever, pair, "document", state)
        text = document.encoded.texts[0]
        begin = document.encoded.offsets[0]
        padded = torch.zeros(len(spans) + 1, document.inputs.shape[1], dtype=torch.bool)
        content = np.flatnonzero(text.content)
        padded[unit_of(text, spans)[content] + 1, begin + content] = True
        score, *scores = document.scores(list(padded)).float().tolist()
    if shared is not None and state is not None:
        shared.keep(key, state.outputs)
    return score, as_array(scores, (len(spans),), "a score")


def _filled(
    retriever: Retriever, pair: TextPair, tokens: TokenizedText, spans: tuple[Span, ...]
) -> list[str]:
    """What was read, with each part replaced with filler of about as many tokens in whole words
    (never more if the document is truncated) and the part's own white space at its ends."""
    texts = []
    read = pair.document[: spans[-1][1]]
    for b, (start, end) in enumerate(spans):
        part = pair.document[start:end]
        n = int((tokens.content & (start <= tokens.starts) & (tokens.starts < end)).sum())
        stand_in = of_tokens(
            retriever, pair.query, pair.language, n, len(part), b, at_most=tokens.truncated
        )
        head = part[: len(part) - len(part.lstrip())]
        tail = part[len(part.rstrip()) :]
        texts.append(read[:start] + head + stand_in + tail + read[end:])
    return texts


def of_tokens(
    retriever: Retriever,
    query: str,
    language: str | None,
    n: int,
    n_characters: int,
    first: int = 0,
    *,
    at_most: bool = False,
) -> str:
    """Filler of about `n` tokens of the model, in whole words; never empty.

    `n_characters` is the estimated length of `n` tokens; more is used if that is too short. With
    `at_most`, the filler has no more than `n` tokens, unless its first word alone has more.
    """
    length = 2 * n_characters + 40
    while True:
        text = filler(language, length, first)
        tokens = tokens_of(retriever, query, text)
        stops = tokens.ends[tokens.content]
        if len(stops) >= n or tokens.truncated:
            break
        length *= 2
    at = stops[min(max(n, 1), len(stops)) - 1]
    ends = np.array([end for _, end in words(text)])
    if at_most:
        return text[: max(ends[0], ends[ends <= at].max(initial=0))]
    return text[: ends[int(np.argmin(np.abs(ends - at)))]]
