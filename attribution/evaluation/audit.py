"""Which sentences of a corpus retrieve their own document?

Each sentence, and a question made from it, is a query against an index of the whole corpus. A
sentence is unretrieved if its own document is not in the top k. The control is the same corpus with
the sentences of each document in random order: an effect of position that remains there is due to
position alone; one that disappears is due to content (docs/methods.md, section 14).

The question is the sentence without punctuation or frequent words. The frequent words of a
language are its most frequent ones that together make up half of the corpus's running words.
Sentences of fewer than three words are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import (
    MIN_DOCUMENTS,
    Estimate,
    Values,
    estimate,
    generator_for,
    intervals,
    ratio,
    ratio_difference,
    ratios,
)
from poslens.attribution.curves.proportions import even_if_constant
from poslens.attribution.datasets.corpus import Document
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.chunks import WHOLE, Chunks
from poslens.attribution.evaluation.comparison import (
    SHARE_MARGIN,
    Comparison,
    compared,
)
from poslens.attribution.evaluation.document_index import Ints
from poslens.attribution.interventions.relocation import Pieces
from poslens.attribution.text import require_sentences, sentences, word_spans
from poslens.attribution.types import Method

TOP = 10
N_BINS = 10
MIN_WORDS = 3
"""Shorter sentences are headings and numbers, which identify no document."""
_FREQUENT = 0.5

Order = Literal["original", "random"]
ORDERS: tuple[Order, ...] = ("original", "random")
"""The order of each document's sentences."""
QueryForm = Literal["sentence", "question"]
QUERY_FORMS: tuple[QueryForm, ...] = ("sentence", "question")
LENGTHS = (0, 128, 256, 512, 1024)
"""Lower limits of the classes of document length, in words."""

Frequent = Mapping[str | None, frozenset[str]]


def audit_method(chunks: Chunks = WHOLE) -> Method:
    """The method under which ranks of sentences are stored."""
    # Version 2: no window has more tokens than its size; late chunks have all of their tokens even
    # if pooling excludes the prompt.
    version = 1 if chunks.kind == "whole" else 2
    return Method("reachability", {"chunks": str(chunks), "version": version})


# -- queries ---------------------------------------------------------------------------------------


def frequent_words(documents: Iterable[Document]) -> Frequent:
    """The frequent words of each language, which questions omit."""
    counts: dict[str | None, Counter[str]] = {}
    for document in documents:
        counts.setdefault(document.language, Counter()).update(_plain_words(document.text))
    frequent: dict[str | None, frozenset[str]] = {}
    for language, counted in counts.items():
        total, seen, most = counted.total(), 0, set()
        # Ties in alphabetical order, so that the order of documents does not matter.
        for word, n in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
            if seen >= _FREQUENT * total:
                break
            most.add(word)
            seen += n
        frequent[language] = frozenset(most)
    return frequent


def question(sentence: str, frequent: frozenset[str]) -> str:
    """The sentence without frequent words and punctuation; empty if nothing is left."""
    parts: list[str] = []
    end = 0
    for a, b in word_spans(sentence):
        if sentence[a:b].casefold() in frequent:
            continue
        # Scripts without spaces keep their characters together.
        parts += [" " if parts and a > end else "", sentence[a:b]]
        end = b
    return "".join(parts)


def _plain_words(text: str) -> list[str]:
    return [text[a:b].casefold() for a, b in word_spans(text)]


@dataclass(frozen=True, slots=True)
class DocumentQueries:
    """Queries made from the S sentences of a document, in both forms. `spans` are their characters
    in the document, `positions` [2, S] their mid-points over the text's length by order, and
    `shuffled` is the text in random order."""

    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    shuffled: str
    shuffled_starts: tuple[int, ...]
    n_words: int

    @property
    def positions(self) -> NDArray[np.float64]:
        """Mid-points [2, S] in [0, 1]."""
        lengths = np.array([b - a for a, b in self.spans], dtype=np.float64)
        starts = np.array([[a for a, _ in self.spans], self.shuffled_starts], dtype=np.float64)
        placed: NDArray[np.float64] = (starts + lengths / 2) / max(1, len(self.shuffled))
        return placed


def shuffled(document: Document) -> str:
    """The document's sentences in random order, seeded by its text. White space between the n-th
    sentence and the next stays where it is."""
    return _order(document)[0]


def _order(document: Document) -> tuple[str, list[int], list[int]]:
    """The shuffled text, the number of the sentence at each position, and where each begins."""
    text = Pieces.of(document.text, sentences(document.text, document.language))
    order = generator_for(document.text).permutation(len(text.sentences)).tolist()
    return text.joined(order), order, text.starts(order)


def document_queries(document: Document, frequent: Frequent) -> DocumentQueries:
    """The queries made from a document.

    Raises:
        UserError: it cannot be split into sentences, or has none of three words.
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
    texts, characters, places = zip(*rows, strict=True)
    questions = tuple(question(sentence, left_out) for sentence in texts)
    n_words = len(_plain_words(document.text))
    return DocumentQueries(texts, questions, characters, text, places, n_words)


# -- ranks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SentenceRanks:
    """Ranks at which the S sentences of a document retrieve it.

    `ranks` [2, 2, S] are by order and query form (0 if the query is empty). `positions` [2, S] and
    `read` [2, S] are by order; `read` is the share of the sentence that the model reads, in [0, 1].
    `spans` are as in `DocumentQueries`."""

    document_id: str
    language: str | None
    n_words: int
    spans: tuple[tuple[int, int], ...]
    positions: NDArray[np.float64]
    read: NDArray[np.float64]
    ranks: Ints

    def __post_init__(self) -> None:
        n = len(self.spans)
        if not n or {self.positions.shape, self.read.shape} != {(2, n)} or self.n_words < 0:
            raise ValueError("no sentences of a document")
        if self.ranks.shape != (2, 2, n) or (self.ranks < 0).any():
            raise ValueError("no ranks of sentences")
        if not all(0 <= a < b for a, b in self.spans):
            raise ValueError("no spans of sentences")
        for shares in (self.positions, self.read):
            if not ((shares >= 0) & (shares <= 1)).all():
                raise ValueError("a share outside 0 to 1")

    def unretrieved(self, order: Order, query_form: QueryForm, top: int) -> NDArray[np.float64]:
        """1 for each sentence [S] whose document is not in the top, else 0; NaN if its query is
        empty."""
        ranks = self.ranks[ORDERS.index(order), QUERY_FORMS.index(query_form)]
        return np.where(ranks == 0, np.nan, ranks > top).astype(np.float64)

    def share(self, order: Order, query_form: QueryForm, top: int) -> float | None:
        """Share of its unretrieved sentences, 0 to 1; None if every query is empty."""
        unretrieved = self.unretrieved(order, query_form, top)
        return None if np.isnan(unretrieved).all() else float(np.nanmean(unretrieved))


@dataclass(frozen=True, slots=True)
class UnretrievedCurve:
    """Share of unretrieved sentences in 10 bins of position: `share` [10] with the ends of 95%
    intervals that resample documents (None for fewer than 10), over `n` [10] sentences; NaN in
    empty bins. Bins with sentences of fewer than 10 documents have no interval either, but NaN.
    Where the share is 0 or 1, the interval is Agresti and Coull's for the number of documents."""

    share: Values
    low: Values | None
    high: Values | None
    n: Ints


def require_top(top: int, n_documents: int) -> None:
    """Refuse a top k that is below 1 or includes every document of the corpus.

    Raises:
        UserError: `top` is one of these, or the corpus has fewer than two documents.
    """
    if top < 1:
        raise UserError(f"top must be at least 1, not {top}.")
    if n_documents < 2:
        raise UserError(
            f"The corpus has only {n_documents} readable document, so every sentence retrieves it: "
            "use at least two."
            if n_documents
            else "The corpus has no readable document: use at least two."
        )
    if top >= n_documents:
        raise UserError(
            f"The top {top} includes all {n_documents:,} documents: choose a smaller top k."
        )


def unretrieved_curve(
    documents: Sequence[SentenceRanks], order: Order, query_form: QueryForm, top: int
) -> UnretrievedCurve:
    """Unretrieved sentences by position."""
    rows = np.zeros((len(documents), 2 * N_BINS))
    for row, document in zip(rows, documents, strict=True):
        unretrieved = document.unretrieved(order, query_form, top)
        asked = np.isfinite(unretrieved)
        at = np.minimum((document.positions[ORDERS.index(order)] * N_BINS).astype(int), N_BINS - 1)
        row[:N_BINS] = np.bincount(at[asked], unretrieved[asked], N_BINS)
        row[N_BINS:] = np.bincount(at[asked], minlength=N_BINS)
    counts = rows[:, N_BINS:].sum(1)
    low, high = intervals(rows, None, ratios, counts=counts) or (None, None)
    share = ratios(rows.sum(0)[None])[0]
    n = rows[:, N_BINS:].sum(0).astype(int)
    if low is not None and high is not None:
        n_documents = np.count_nonzero(rows[:, N_BINS:], axis=0)
        low[n_documents < MIN_DOCUMENTS] = high[n_documents < MIN_DOCUMENTS] = np.nan
        for b in np.flatnonzero(np.isfinite(low)).tolist():
            mean = Estimate(share[b], low[b], high[b], n_resampled=n_documents[b])
            low[b], high[b] = even_if_constant(mean).interval or (np.nan, np.nan)
    return UnretrievedCurve(share, low, high, n)


def share_row(
    document: SentenceRanks,
    order: Order,
    query_form: QueryForm,
    top: int,
    *,
    read: bool | None = None,
) -> Values:
    """A document's unretrieved sentences and its sentences [2], whose `ratio` is their share.
    `read` restricts them to those that the model reads whole (True) or does not (False)."""
    unretrieved = document.unretrieved(order, query_form, top)
    asked = np.isfinite(unretrieved)
    if read is not None:
        asked &= (document.read[ORDERS.index(order)] >= 1) == read
    return np.array([unretrieved[asked].sum(), asked.sum()], dtype=np.float64)


def unretrieved_share(
    documents: Sequence[SentenceRanks],
    order: Order,
    query_form: QueryForm,
    top: int,
    *,
    read: bool | None = None,
) -> Estimate | None:
    """Share of unretrieved sentences; None if there is no sentence. `read` is as in `share_row`."""
    rows = (share_row(each, order, query_form, top, read=read) for each in documents)
    if not (asked := [row for row in rows if row[1]]):
        return None
    values = np.array(asked)
    share = estimate(values, None, ratio, counts=values[:, 1])
    return None if share is None else even_if_constant(share)


def thirds_row(document: SentenceRanks, order: Order, query_form: QueryForm, top: int) -> Values:
    """A document's unretrieved sentences in the last and in the first third of its text, and its
    sentences there [4]."""
    unretrieved = document.unretrieved(order, query_form, top)
    positions = document.positions[ORDERS.index(order)]
    last, first = (
        np.isfinite(unretrieved) & where for where in (positions > 2 / 3, positions < 1 / 3)
    )
    counts = (unretrieved[last].sum(), unretrieved[first].sum(), last.sum(), first.sum())
    return np.array(counts, dtype=np.float64)


def last_minus_first(
    documents: Sequence[SentenceRanks], order: Order, query_form: QueryForm, top: int
) -> Comparison | None:
    """Share of unretrieved sentences in the last third of documents compared with that in the
    first."""
    if not documents:
        return None
    rows = np.array([thirds_row(document, order, query_form, top) for document in documents])
    return compared(rows, None, SHARE_MARGIN, ratio_difference, counts=rows[:, 2:], largest=1)


def recovered(
    before: Sequence[SentenceRanks], after: Sequence[SentenceRanks], query_form: QueryForm, top: int
) -> Comparison | None:
    """Share of unretrieved sentences before minus that after, over the sentences that both have;
    the interval resamples documents, the same ones for both. If no document differs, it covers
    differences too rare to be among these documents (`compared`)."""
    others = {document.document_id: document for document in after}
    rows = []
    for document in before:
        if (other := others.get(document.document_id)) is None or other.spans != document.spans:
            continue
        old, new = (each.unretrieved("original", query_form, top) for each in (document, other))
        less = old - new
        asked = np.isfinite(less)
        rows.append(np.array([less[asked].sum(), asked.sum()], dtype=np.float64))
    if not rows:
        return None
    values = np.array(rows)
    return compared(values, None, SHARE_MARGIN, ratio, counts=values[:, 1], largest=1)


def repeated(
    ranks: Sequence[SentenceRanks], corpus: Iterable[Document]
) -> dict[str, NDArray[np.bool_]]:
    """Whether each sentence [S] of these documents occurs verbatim in another of them, by document
    id: no search can tell these documents apart by it."""
    spans = {document.document_id: document.spans for document in ranks}
    # 64-bit hashes instead of sentences: a corpus can have millions.
    hashes = {
        document.key: [hash(document.text[a:b]) for a, b in spans[document.key]]
        for document in corpus
        if document.key in spans
    }
    n_documents = Counter(each for own in hashes.values() for each in set(own))
    return {key: np.array([n_documents[each] > 1 for each in own]) for key, own in hashes.items()}


@dataclass(frozen=True, slots=True)
class DocumentGroup:
    """The unretrieved sentences of documents of one language or length."""

    by: Literal["language", "length"]
    name: str
    n_documents: int
    n_sentences: int
    original_order: Estimate | None
    random_order: Estimate | None


def groups(
    documents: Sequence[SentenceRanks], query_form: QueryForm, top: int
) -> list[DocumentGroup]:
    """Groups by language, the one with the most documents first, then by length in words."""
    by_language: dict[str, list[SentenceRanks]] = {}
    by_length: dict[int, list[SentenceRanks]] = {}
    for document in documents:
        by_language.setdefault(document.language or "unknown", []).append(document)
        by_length.setdefault(sum(document.n_words >= n for n in LENGTHS[1:]), []).append(document)
    names = [
        f"{n:,} words or more" if n == LENGTHS[-1] else f"{n:,} to {after - 1:,} words"
        for n, after in zip(LENGTHS, (*LENGTHS[1:], 0), strict=True)
    ]
    languages = sorted(by_language.items(), key=lambda item: (-len(item[1]), item[0]))
    ordered: list[tuple[Literal["language", "length"], str, list[SentenceRanks]]] = [
        *(("language", name, some) for name, some in languages),
        *(("length", names[at], some) for at, some in sorted(by_length.items())),
    ]
    return [
        DocumentGroup(
            by,
            name,
            len(some),
            sum(int(np.isfinite(d.unretrieved("original", query_form, top)).sum()) for d in some),
            unretrieved_share(some, "original", query_form, top),
            unretrieved_share(some, "random", query_form, top),
        )
        for by, name, some in ordered
    ]


def worst(
    documents: Sequence[SentenceRanks], query_form: QueryForm, top: int
) -> list[tuple[SentenceRanks, int, int]]:
    """Documents with unretrieved sentences, each with the number of these and of all its sentences
    that were searched for; most unretrieved sentences first."""
    rows = [
        (document, int(np.nansum(unretrieved)), int(np.isfinite(unretrieved).sum()))
        for document in documents
        for unretrieved in [document.unretrieved("original", query_form, top)]
    ]
    missed = (row for row in rows if row[1])
    return sorted(missed, key=lambda row: (-row[1], -row[1] / row[2], row[0].document_id))
