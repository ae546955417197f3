"""Reachability: can a document's sentences find it in an index of the whole corpus?

Each sentence, and a question made from it, is searched for; it is dark where its own document is
not among the top k. The same corpus with each document's sentences in an order by lot is the null:
what depends on the place there is position, what does so in the documents' own order alone is
content (docs/methods.md, section 14).

The question is the sentence without its frequent words and without punctuation. Frequent are the
most frequent words of the corpus, in each language, that together make up half of its running
words. Sentences of fewer than three words are not searched for.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import SEED, Estimate, Values, estimate, intervals
from poslens.attribution.datasets.corpus import Document
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.chunks import WHOLE, Chunks
from poslens.attribution.evaluation.document_index import Ints
from poslens.attribution.interventions.relocation import pieces
from poslens.attribution.text import require_sentences, sentences, words
from poslens.attribution.types import Method

TOP = 10
N_BINS = 10
MIN_WORDS = 3
"""Shorter sentences are headings and numbers: they name nothing to be found by."""
_FREQUENT = 0.5

Order = Literal["own", "shuffled"]
ORDERS: tuple[Order, ...] = ("own", "shuffled")
"""Each document's sentences in its own order, and in one by lot."""
Probe = Literal["sentence", "question"]
PROBES: tuple[Probe, ...] = ("sentence", "question")
LENGTHS = (0, 128, 256, 512, 1024)
"""Where classes of documents' lengths begin, in words."""

Frequent = Mapping[str | None, frozenset[str]]


def audit_method(chunks: Chunks = WHOLE) -> Method:
    """The name under which reachability is kept and shown."""
    # Version 2: no window has more tokens than its size.
    version = 2 if chunks.kind == "windows" else 1
    return Method("reachability", {"chunks": str(chunks), "version": version})


# -- what is searched for --------------------------------------------------------------------------


def frequent_words(documents: Iterable[Document]) -> Frequent:
    """The words that questions leave out, by language."""
    counts: dict[str | None, Counter[str]] = {}
    for one in documents:
        counts.setdefault(one.language, Counter()).update(_plain_words(one.text))
    found: dict[str | None, frozenset[str]] = {}
    for language, counted in counts.items():
        total, seen, kept = counted.total(), 0, set()
        # By the alphabet among equals, so that the order of documents has no say.
        for word, n in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
            if seen >= _FREQUENT * total:
                break
            kept.add(word)
            seen += n
        found[language] = frozenset(kept)
    return found


def question(sentence: str, frequent: frozenset[str]) -> str:
    """The sentence without frequent words and punctuation; empty where nothing is left."""
    kept: list[str] = []
    end = 0
    for a, b in words(sentence):
        if not any(map(str.isalnum, sentence[a:b])) or sentence[a:b].casefold() in frequent:
            continue
        # Scripts without spaces keep their characters together.
        kept.append(" " if kept and a > end else "")
        kept.append(sentence[a:b])
        end = b
    return "".join(kept)


def _plain_words(text: str) -> list[str]:
    found = (text[a:b] for a, b in words(text))
    return [word.casefold() for word in found if any(map(str.isalnum, word))]


@dataclass(frozen=True, slots=True)
class Probes:
    """What is searched for of a document: the texts [S] of both kinds, and where its S sentences
    are. `spans` are their characters in the document; `places` [2, S] are their mid-points over the
    text's length, in its own order and shuffled, and `shuffled` is that other text."""

    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    shuffled: str
    shuffled_starts: tuple[int, ...]
    n_words: int

    @property
    def places(self) -> NDArray[np.float64]:
        """Mid-points [2, S] in [0, 1]."""
        lengths = np.array([b - a for a, b in self.spans], dtype=np.float64)
        starts = np.array([[a for a, _ in self.spans], self.shuffled_starts], dtype=np.float64)
        placed: NDArray[np.float64] = (starts + lengths / 2) / max(1, len(self.shuffled))
        return placed


def shuffled(document: Document) -> str:
    """The document's sentences in an order by lot, seeded by its text; white space between the n-th
    and the next one stays."""
    return _order(document)[0]


def _order(document: Document) -> tuple[str, list[int], list[int]]:
    """The shuffled text, which sentence stands at each place, and where each place begins."""
    found = pieces(document.text, document.language)
    lot = np.random.default_rng([SEED, zlib.crc32(document.text.encode("utf-8", "replace"))])
    order = lot.permutation(len(found.sentences)).tolist()
    at, starts = 0, []
    for place, number in enumerate(order):
        at += len(found.gaps[place])
        starts.append(at)
        at += len(found.sentences[number])
    return found.joined(order), order, starts


def probes(document: Document, frequent: Frequent) -> Probes:
    """What is searched for of a document.

    Raises:
        UserError: its sentences cannot be told apart, or it has none of three words.
    """
    require_sentences(document.text)
    spans = sentences(document.text, document.language)
    text, order, starts = _order(document)
    begins = dict(zip(order, starts, strict=True))
    left_out = frequent.get(document.language, frozenset())
    rows = [
        (document.text[a:b], (a, b), begins[number])
        for number, (a, b) in enumerate(spans)
        if len(_plain_words(document.text[a:b])) >= MIN_WORDS
    ]
    if not rows:
        raise UserError("The document has no sentence of three words or more.")
    return Probes(
        tuple(sentence for sentence, _, _ in rows),
        tuple(question(sentence, left_out) for sentence, _, _ in rows),
        tuple(span for _, span, _ in rows),
        text,
        tuple(start for _, _, start in rows),
        len(_plain_words(document.text)),
    )


# -- what was found --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reach:
    """A document's S sentences: `ranks` [2, 2, S] of the document, by order and by what is searched
    for (0: nothing is left to search for); `places` [2, S] and `read` [2, S] by order, the latter
    how much of the sentence the model reads there, in [0, 1]. `spans` as in `Probes`."""

    document_id: str
    language: str | None
    n_words: int
    spans: tuple[tuple[int, int], ...]
    places: NDArray[np.float64]
    read: NDArray[np.float64]
    ranks: Ints

    def __post_init__(self) -> None:
        n = len(self.spans)
        if not n or {self.places.shape, self.read.shape} != {(2, n)} or self.n_words < 0:
            raise ValueError("no sentences of a document")
        if self.ranks.shape != (2, 2, n) or (self.ranks < 0).any():
            raise ValueError("no ranks of sentences")
        if not all(0 <= a < b for a, b in self.spans):
            raise ValueError("no spans of sentences")
        for shares in (self.places, self.read):
            if not ((shares >= 0) & (shares <= 1)).all():
                raise ValueError("a share outside 0 to 1")

    def dark(self, order: Order, probe: Probe, top: int) -> NDArray[np.float64]:
        """1 for each sentence [S] whose document is not in the top, else 0; NaN where nothing was
        searched for."""
        ranks = self.ranks[ORDERS.index(order), PROBES.index(probe)]
        return np.where(ranks == 0, np.nan, ranks > top).astype(np.float64)


@dataclass(frozen=True, slots=True)
class DarkCurve:
    """Share of dark sentences in 10 bins of their place: `share` [10] with the ends of 95%
    intervals that resample documents (None below 10), over `n` [10] sentences; NaN where a bin has
    none."""

    order: Order
    share: Values
    low: Values | None
    high: Values | None
    n: Ints
    n_documents: int


def require_top(top: int, n_documents: int) -> None:
    """
    Raises:
        UserError: below 1, or as many as there are documents: nothing could be dark.
    """
    if top < 1:
        raise UserError(f"The top has at least 1 document, not {top}.")
    if n_documents < 2:
        raise UserError(
            f"The corpus has {n_documents} document that can be read, so every sentence finds it: "
            "give at least two."
            if n_documents
            else "The corpus has no document that can be read: give at least two."
        )
    if top >= n_documents:
        raise UserError(
            f"The top {top} of {n_documents:,} documents leaves none out: choose a smaller top."
        )


def dark_curve(found: Sequence[Reach], order: Order, probe: Probe, top: int) -> DarkCurve:
    """Dark sentences by their place."""
    rows = np.zeros((len(found), 2 * N_BINS))
    for row, one in zip(rows, found, strict=True):
        dark = one.dark(order, probe, top)
        asked = np.isfinite(dark)
        at = np.minimum((one.places[ORDERS.index(order)] * N_BINS).astype(int), N_BINS - 1)
        row[:N_BINS] = np.bincount(at[asked], dark[asked], N_BINS)
        row[N_BINS:] = np.bincount(at[asked], minlength=N_BINS)
    low, high = intervals(rows, None, _ratios) or (None, None)
    share = _ratios(rows.sum(0)[None])[0]
    return DarkCurve(order, share, low, high, rows[:, N_BINS:].sum(0).astype(int), len(found))


def _ratios(means: Values) -> Values:
    """The first half of the columns over the second; NaN where that is 0."""
    half = means.shape[1] // 2
    over, under = means[:, :half], means[:, half:]
    found = np.divide(over, under, out=np.full(over.shape, np.nan), where=under > 0)
    return np.asarray(found, dtype=np.float64)


def dark_share(
    found: Sequence[Reach], order: Order, probe: Probe, top: int, *, read: bool | None = None
) -> Estimate | None:
    """Share of dark sentences; with `read` of those alone that the model reads whole, or does not.
    None where there are none."""
    rows = []
    for one in found:
        dark = one.dark(order, probe, top)
        asked = np.isfinite(dark)
        if read is not None:
            asked &= (one.read[ORDERS.index(order)] >= 1) == read
        rows.append((dark[asked].sum(), asked.sum()))
    return _share(rows)


def lean(found: Sequence[Reach], order: Order, probe: Probe, top: int) -> Estimate | None:
    """Share of dark sentences in the last third of documents less that in the first."""
    rows = []
    for one in found:
        dark, places = one.dark(order, probe, top), one.places[ORDERS.index(order)]
        last, first = (np.isfinite(dark) & where for where in (places > 2 / 3, places < 1 / 3))
        rows.append((dark[last].sum(), dark[first].sum(), last.sum(), first.sum()))
    if not rows:
        return None

    def less(means: Values) -> Values:
        ratios = _ratios(means)
        return ratios[:, 0] - ratios[:, 1]

    return estimate(np.array(rows, dtype=np.float64), None, less)


def won_back(
    before: Sequence[Reach], after: Sequence[Reach], probe: Probe, top: int
) -> Estimate | None:
    """Share of dark sentences before less that after, over the sentences that both were asked for;
    the same documents are resampled."""
    others = {one.document_id: one for one in after}
    rows = []
    for one in before:
        if (other := others.get(one.document_id)) is None or other.spans != one.spans:
            continue
        less = one.dark("own", probe, top) - other.dark("own", probe, top)
        asked = np.isfinite(less)
        rows.append((less[asked].sum(), asked.sum()))
    return _share(rows)


def _share(rows: Sequence[tuple[float, float]]) -> Estimate | None:
    if not rows:
        return None
    return estimate(np.array(rows, dtype=np.float64), None, lambda means: _ratios(means)[:, 0])


@dataclass(frozen=True, slots=True)
class Group:
    """The dark sentences of documents of one language or length."""

    by: Literal["language", "length"]
    name: str
    n_documents: int
    n_sentences: int
    own: Estimate | None
    shuffled: Estimate | None


def groups(found: Sequence[Reach], probe: Probe, top: int) -> list[Group]:
    """By language, the one of most documents first, then by length in words."""
    by_language: dict[str, list[Reach]] = {}
    by_length: dict[int, list[Reach]] = {}
    for one in found:
        by_language.setdefault(one.language or "unknown", []).append(one)
        by_length.setdefault(sum(one.n_words >= n for n in LENGTHS[1:]), []).append(one)
    ordered = sorted(by_language.items(), key=lambda item: (-len(item[1]), item[0]))
    result = [_group("language", name, ones, probe, top) for name, ones in ordered]
    for at, ones in sorted(by_length.items()):
        last = at + 1 == len(LENGTHS)
        name = (
            f"{LENGTHS[at]:,} words or more"
            if last
            else f"{LENGTHS[at]:,} to {LENGTHS[at + 1] - 1:,} words"
        )
        result.append(_group("length", name, ones, probe, top))
    return result


def _group(
    by: Literal["language", "length"], name: str, found: Sequence[Reach], probe: Probe, top: int
) -> Group:
    return Group(
        by,
        name,
        len(found),
        sum(int(np.isfinite(one.dark("own", probe, top)).sum()) for one in found),
        dark_share(found, "own", probe, top),
        dark_share(found, "shuffled", probe, top),
    )


def worst(found: Sequence[Reach], probe: Probe, top: int) -> list[tuple[Reach, int, int]]:
    """Documents with dark sentences, how many of how many, those with most first."""
    rows = []
    for one in found:
        dark = one.dark("own", probe, top)
        n = int(np.nansum(dark))
        if n:
            rows.append((one, n, int(np.isfinite(dark).sum())))
    return sorted(rows, key=lambda row: (-row[1], -row[1] / row[2], row[0].document_id))
