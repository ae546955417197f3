"""Curves that need documents but no queries: how well each part of a text matches the vector of the
whole, and how the vector changes if text is inserted or removed (docs/methods.md, section 8).

A segment's cosine with the whole text depends on its content and on its position. In random order
the two are independent: a difference that remains is due to position.

Sources: segments, arXiv 2601.16934; insertion and removal, arXiv 2412.15241; thirds, arXiv
2505.13950, appendix A.4.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch

from poslens.attribution.curves.bootstrap import generator_for
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import (
    Span,
    parts_of,
    require_edges,
    stepped,
    token_edges,
)
from poslens.attribution.interventions.filler import filler, filler_note
from poslens.attribution.interventions.relocation import Pieces, require_shares
from poslens.attribution.retrievers.base import Pooled, Retriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.retrievers.scoring import Known, read_texts
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import joined, require_sentences, sentences, word_spans, words
from poslens.attribution.types import Array, Method, TextPair, TokenizedText, as_array, set_arrays

Cut = Literal["segments", "shuffled", "thirds"]
Edit = Literal["insertion", "removal"]
EDITS: tuple[Edit, ...] = ("insertion", "removal")
EditPosition = Literal["beginning", "middle", "end"]
POSITIONS: tuple[EditPosition, ...] = ("beginning", "middle", "end")

N_SEGMENTS = 10
SHARES: dict[Edit, tuple[float, ...]] = {
    "insertion": (0.05, 0.1, 0.25, 0.5, 1.0),
    "removal": (0.05, 0.1, 0.25, 0.5, 0.75),
}
"""How much text is inserted or removed, relative to the text's length."""

STEP = 0.8
"""Factor by which a text is shortened repeatedly until the result of an insertion is read whole."""

VERSION = 1
EDITS_VERSION = 4


def segments_method(cut: Cut) -> Method:
    """The method under which segment curves are stored and shown."""
    if cut == "thirds":
        return Method("thirds", {"version": VERSION})
    order = {"order": "shuffled"} if cut == "shuffled" else {}
    return Method("segments", {"segments": N_SEGMENTS, **order, "version": VERSION})


def edits_method(by: Edit) -> Method:
    """The method under which insertion and removal are stored and shown."""
    return Method(by, {"version": EDITS_VERSION})


def documents_of(pairs: Sequence[TextPair]) -> list[TextPair]:
    """Each document of the pairs once, without a query, in order of first appearance."""
    return [
        replace(pair, pair_id=number, query="", evidence=None, query_type=None)
        for number, pair in first_pairs(pairs).items()
    ]


def first_pairs(pairs: Sequence[TextPair]) -> dict[str, TextPair]:
    """The first pair of each document, by the document's id in `documents_of`."""
    chosen_pairs: dict[tuple[str, str | None], TextPair] = {}
    for pair in pairs:
        chosen_pairs.setdefault((pair.document, pair.language), pair)
    # Results are stored by these ids.
    return {f"document-{n}": pair for n, pair in enumerate(chosen_pairs.values(), start=1)}


@dataclass(frozen=True, slots=True)
class SegmentCurve:
    """Cosine of each segment's own vector with the vector of the whole text, by position.

    `cosines` [S] are in the order of the text's segments. `edges` [S + 1] are the segments'
    boundaries as relative token positions, the axis of every curve. Only what the model reads is
    divided: `read_share` of the document's characters.
    """

    model: str
    pair_id: str
    edges: Array
    cosines: Array
    read_share: float
    note: str
    seconds: float

    def __post_init__(self) -> None:
        set_arrays(self, "a cosine", cosines=(None,))
        set_arrays(self, "a position", edges=(len(self.cosines) + 1,))
        require_edges(self.edges)
        require_shares(self.read_share)

    def curve(self, bins: int) -> Array:
        """The cosines at `bins` points of what was read."""
        return stepped(self.edges, self.cosines, bins)


@dataclass(frozen=True, slots=True)
class EditCurves:
    """Cosine of the edited text's vector with the original one: `cosines` [3, S], with rows for the
    beginning, the middle and the end and columns for SHARES. `read_share` is the share of the
    document's characters that was used as the text; `truncated` says whether the model reads only
    a part of the document."""

    model: str
    pair_id: str
    by: Edit
    cosines: Array
    read_share: float
    truncated: bool
    note: str
    seconds: float

    def __post_init__(self) -> None:
        set_arrays(self, "a cosine", cosines=(len(POSITIONS), len(SHARES[self.by])))
        require_shares(self.read_share)


def segment_curve(
    retriever: Retriever,
    pair: TextPair,
    cut: Cut = "segments",
    segments: int = N_SEGMENTS,
    *,
    cached: Known | None = None,
) -> SegmentCurve:
    """The segment curve of the pair's document; the query is not used.

    `segments`: parts of about equal length in characters, cut at sentence boundaries. `shuffled`:
    the same parts in random order (seeded by the text), compared with the text in that order.
    `thirds`: three parts of equal length in characters, cut anywhere. Vectors in `cached` are not
    computed again.

    Raises:
        UserError: the model has no vector per text, or the text has fewer than two segments.
        Stopped: canceled (`stoppable`).
    """
    started = time.perf_counter()
    model = _pooled(retriever)
    text, tokens = read_text(model, pair.document)
    share = tokens.share_read(len(pair.document))
    n = 3 if cut == "thirds" else segments
    parts = thirds(text) if cut == "thirds" else segments_of(text, n, pair.language)
    if len(parts) < 2:
        raise UserError(
            "The text is one sentence, so it has no segments: choose a text of at least two "
            "sentences, or the intervention thirds."
        )
    note = "" if len(parts) == n else f"the text has {len(parts)} segments, not {n}"
    order = list(range(len(parts)))
    pieces = pieces_of(text, parts)
    if cut == "shuffled":
        order = generator_for(text).permutation(len(parts)).tolist()
        text = pieces.joined(order)
        tokens = model.encode_texts([text], "document").texts[0]
    spans = placed(pieces, order, len(text))
    cosines = _cosines(model, [text, *(pieces.sentences[i] for i in order)], cached)
    return SegmentCurve(
        model=retriever.name,
        pair_id=pair.pair_id,
        edges=token_edges(tokens, spans),
        cosines=cosines,
        read_share=share,
        note=note,
        seconds=time.perf_counter() - started,
    )


def edit_curves(
    retriever: Retriever,
    pair: TextPair,
    by: Edit = "insertion",
    *,
    cached: Known | None = None,
) -> EditCurves:
    """The change in the vector of the pair's document if neutral text is inserted, or its own text
    removed, at three positions; the query is not used.

    A text that would not be read whole after an insertion is shortened first (see `shortened`).

    Raises:
        UserError: the model has no vector per text, or the text has one word.
        Stopped: canceled (`stoppable`).
    """
    started = time.perf_counter()
    model = _pooled(retriever)
    text, tokens = read_text(model, pair.document)
    if by == "insertion":
        text = shortened(model, text, pair.language)
    if not _inner_borders(text):
        raise UserError("The text is one word: choose a longer one.")
    edited = [
        inserted(text, pair.language, share, position)
        if by == "insertion"
        else removed(text, share, position)
        for position in POSITIONS
        for share in SHARES[by]
    ]
    cosines = _cosines(model, [text, *edited], cached)
    notes = [filler_note(pair.language)] if by == "insertion" else []
    return EditCurves(
        model=retriever.name,
        pair_id=pair.pair_id,
        by=by,
        cosines=cosines.reshape(len(POSITIONS), -1),
        read_share=len(text) / len(pair.document),
        truncated=tokens.truncated,
        note="; ".join(filter(None, notes)),
        seconds=time.perf_counter() - started,
    )


# -- texts -----------------------------------------------------------------------------------------


def read_text(model: Pooled, document: str) -> tuple[str, TokenizedText]:
    """The part of a document that the model reads, and its tokens."""
    tokens = model.encode_texts([document], "document").texts[0]
    return (document[: tokens.read_until] if tokens.truncated else document), tokens


def segments_of(text: str, n: int, language: str | None) -> tuple[Span, ...]:
    """The text in `n` parts of about equal length, cut at sentence boundaries; fewer if it has
    fewer sentences.

    Raises:
        UserError: it is in a script without sentence boundaries.
    """
    require_sentences(text)
    return parts_of(text, len(text), n, [start for start, _ in sentences(text, language)])


def thirds(text: str) -> tuple[Span, ...]:
    """The text in three parts of equal length in characters."""
    return tuple(pairwise(sorted({round(len(text) * k / 3) for k in range(4)})))


def pieces_of(text: str, spans: Sequence[Span]) -> Pieces:
    """Parts without surrounding white space, and the separators between them."""
    bare = []
    for start, end in spans:
        part = text[start:end]
        head = len(part) - len(part.lstrip())
        bare.append((start + head, max(start + head, start + len(part.rstrip()))))
    return Pieces.of(text, bare)


def placed(pieces: Pieces, order: Sequence[int], length: int) -> tuple[Span, ...]:
    """Spans of the parts in that order: each extends to the beginning of the next one."""
    return tuple(pairwise([0, *pieces.starts(order)[1:], length]))


def inserted(text: str, language: str | None, share: float, position: EditPosition) -> str:
    """The text with neutral text of `share` of its length before it, after it, or in its middle
    between two words."""
    length = max(1, round(share * len(text)))
    passage = filler(language, length)[:length].rstrip()
    if position == "beginning":
        return joined([passage, text])
    if position == "end":
        return joined([text, passage])
    at = _nearest(_inner_borders(text), len(text) // 2)
    return joined([text[:at], passage, text[at:]])


def removed(text: str, share: float, position: EditPosition) -> str:
    """The text without about `share` of its characters at its beginning, its middle or its end, in
    whole words; at least one word is removed and one remains, and words remain on both sides of a
    removed middle if the text has three."""
    gone, borders = round(share * len(text)), _inner_borders(text)
    if position == "beginning":
        return text[_nearest(borders, gone) :]
    if position == "end":
        return text[: _nearest(borders, len(text) - gone)].rstrip()
    start = (len(text) - gone) // 2
    a = _nearest(borders[:-1] or [0], start)
    b = _nearest([border for border in borders if border > a], start + gone)
    return joined([text[:a], text[b:]])


def shortened(model: Pooled, text: str, language: str | None) -> str:
    """The text, or the longest beginning that is still read whole after as much text is inserted;
    past the context limit, insertions would have no effect."""
    while borders := _inner_borders(text):
        longest = inserted(text, language, max(SHARES["insertion"]), "beginning")
        if not model.encode_texts([longest], "document").texts[0].truncated:
            break
        text = text[: _nearest(borders, int(STEP * len(text)))].rstrip()
    return text


def _inner_borders(text: str) -> list[int]:
    """Where a word begins, except the first one. A punctuation mark belongs to the word before it,
    unless the text has no other words."""
    return [start for start, _ in word_spans(text) or words(text)][1:]


def _nearest(borders: Sequence[int], at: int) -> int:
    return min(borders, key=lambda border: abs(border - at))


# -- vectors ---------------------------------------------------------------------------------------


def require_vector(spec: RetrieverSpec) -> None:
    """Refuse a model without one dense vector per text.

    Raises:
        UserError: the model has none.
    """
    if Capability.VECTOR not in family_of(spec).capabilities:
        raise UserError(f"{spec.name} has no single dense vector per text: choose a dense model.")


def _pooled(retriever: Retriever) -> Pooled:
    require_vector(retriever.spec)
    return retriever  # type: ignore[return-value]


def _cosines(model: Pooled, texts: Sequence[str], cached: Known | None) -> Array:
    """Cosines [n] of the first text's vector with each other vector."""
    vectors: dict[str, torch.Tensor] = {}
    for batch, representation in read_texts(model, texts, "document", cached=cached):
        unit = torch.nn.functional.normalize(representation.cpu().double(), dim=-1)
        vectors.update(zip(batch, unit, strict=True))
    whole = vectors[texts[0]]
    cosines = [float(whole @ vectors[text]) for text in texts[1:]]
    return as_array(cosines, (len(texts) - 1,), "a cosine")
