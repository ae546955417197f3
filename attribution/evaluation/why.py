"""Why was a document not retrieved for a query? Change one thing, rank the changed document among
the others, which stay as they are, and see which change brings it into the top k (docs/methods.md,
section 16).

The target document is changed in three ways: all of it is read, its evidence moves to the position
that scores highest, and its evidence stands alone. The index is changed in one: near-duplicates of
the document and other relevant documents are removed. Each change has a null, which does the same
to something that should not matter.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import SEED
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.why_causes import MOST_ABOVE, Above, Source, Step, Why
from poslens.attribution.interventions.relocation import (
    Variant,
    evidence_shares,
    relocated,
    tie_range,
)
from poslens.attribution.retrievers.lexical import terms_of
from poslens.attribution.text import overlapping, runs, sentences
from poslens.attribution.types import Array, EvidenceSpan, TextPair, TokenizedText

N_NULLS = 3
"""Number of other sentences that are scored alone instead of the evidence; the null is their median
score."""
N_POSITIONS = 6
"""Number of positions to which the evidence moves, spread evenly over the document. Another
sentence moves to the same positions; the null is its best score."""
LISTED = 10
"""Number of documents above the target document that a result lists."""
MOST_SENTENCES = 400
"""Maximum number of sentences that are tried as evidence."""
Shingle = tuple[str, ...]
_SHINGLE = 4
_DUPLICATE = 0.5
_MIN_EVIDENCE = 6
_SAMPLED = 50
_BOILERPLATE = 0.25
"""4-grams in at least this share of `_SAMPLED` other documents of the corpus, and in at least
`_MIN_SHARED` of them, don't make two documents near-duplicates."""
_MIN_SHARED = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query and the document that it should retrieve: document number `number` of the corpus.
    Without `evidence`, the sentence that scores highest alone is used as evidence."""

    query: str
    document_id: str
    number: int
    text: str
    evidence: EvidenceSpan | None = None
    source: Source = "data set"
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Searched:
    """An index searched for one query: `scores` [n] of every document, minus infinity if it is not
    found. `score` returns the scores of other texts, `tokens` what the model reads of a text;
    `ids` are the documents' ids by number, and `texts` returns their texts."""

    scores: Array
    score: Callable[[Sequence[str]], Array]
    tokens: Callable[[str], TokenizedText]
    ids: Sequence[str]
    texts: Callable[[Sequence[int]], Sequence[str]]

    def rank(self, score: float, number: int) -> int:
        """The rank of document `number` if it had this score; scores that are equal up to rounding
        go to the document that comes first in the corpus."""
        if not np.isfinite(score):
            return NOT_FOUND
        return 1 + int(np.count_nonzero(self._higher(score, number)))

    def _higher(self, score: float, number: int) -> NDArray[np.bool_]:
        """Which documents [n] rank above document `number` if it had this score."""
        if not np.isfinite(score):
            return np.isfinite(self.scores)
        lowest, highest = tie_range(score)
        higher: NDArray[np.bool_] = self.scores > highest
        higher[:number] |= self.scores[:number] >= lowest
        higher[number] = False
        return higher

    def found(self, number: int) -> bool:
        """Whether the document has any match with the query."""
        return bool(np.isfinite(self.scores[number]))

    def best(self, n: int) -> list[int]:
        """Indices of the first `n` documents, best first."""
        order = np.lexsort((np.arange(len(self.scores)), -self.scores))
        return [int(number) for number in order[:n] if self.found(int(number))]

    def above(self, number: int, most: int) -> list[int]:
        """Indices of the documents ranked above this one, best first."""
        higher = np.flatnonzero(self._higher(float(self.scores[number]), number))
        order = np.argsort(-self.scores[higher], kind="stable")[:most]
        return [int(other) for other in higher[order]]


def why(target: Wanted, searched: Searched, top: int, relevant: frozenset[str]) -> Why:
    """Explain the rank of a target document; `relevant` are the ids of all relevant ones.

    Raises:
        UserError: a text cannot be scored.
    """
    number = target.number
    score = float(searched.scores[number])
    rank = searched.rank(score, number)
    evidence = target.evidence
    start, end = (evidence.start, evidence.end) if evidence else (0, 0)
    result = Why(
        document_id=target.document_id,
        top=top,
        n_documents=len(searched.scores),
        rank=rank,
        score=_finite(score),
        source=target.source if evidence else "proposed",
        start=start,
        end=end,
        position=(start + end) / 2 / len(target.text),
        evidence_read=0.0,
    )
    if rank <= top:
        return result
    ladder = _Ladder(target, searched)
    span = ladder.evidence
    moved, best = ladder.moved()
    above = list(_above(target, searched, ladder.passage, relevant))
    asked, in_passage = set(terms_of(target.query)), set(terms_of(ladder.passage))
    return replace(
        result,
        start=span.start,
        end=span.end,
        position=span.midpoint(len(target.text)),
        evidence_read=ladder.read_share,
        read=ladder.read(),
        moved=moved,
        alone=ladder.alone(),
        without=_without(rank, len(searched.scores), above),
        best_position=best,
        n_words=len(target.text.split()),
        n_query_words=len(asked),
        shared_words=tuple(sorted(asked & in_passage)),
        above=tuple(above[:LISTED]),
        relevant_above=sum(document.relevant for document in above),
        duplicates_above=sum(document.duplicate for document in above),
        shorter_above=sum(document.n_words < len(target.text.split()) for document in above),
    )


class _Ladder:
    """The changes to one document. All texts of a change are scored together, each distinct text
    once: different changes can give the same text."""

    def __init__(self, target: Wanted, searched: Searched) -> None:
        self._target, self._searched = target, searched
        text = target.text
        self._scored = {text: float(searched.scores[target.number])}
        self._spans = sentences(text, target.language) or ((0, len(text)),)
        self.evidence = target.evidence or self._proposed()
        self._touched = overlapping(self._spans, self.evidence) or [0]
        start, end = self._spans[self._touched[0]][0], self._spans[self._touched[-1]][1]
        self.passage = text[start:end]
        self._whole = searched.tokens(text)
        self.read_share = self._whole.evidence_read(EvidenceSpan(start, end))

    def _proposed(self) -> EvidenceSpan:
        """The sentence with the highest score on its own."""
        spans = self._spans[:MOST_SENTENCES]
        scores = self._scores([self._target.text[a:b] for a, b in spans])
        return EvidenceSpan(*spans[int(np.argmax(scores))])

    def _scores(self, texts: Sequence[str]) -> list[float]:
        new = [text for text in dict.fromkeys(texts) if text not in self._scored]
        if new:
            self._scored |= zip(new, map(float, self._searched.score(new)), strict=True)
        return [self._scored[text] for text in texts]

    def _step(self, score: float, null: float | None) -> Step:
        """The step to this score, with its null."""
        rank, number = self._searched.rank, self._target.number
        null_rank = None if null is None else rank(null, number)
        return Step(rank(score, number), null_rank, _finite(score), _finite(null))

    def _others(self) -> list[tuple[int, int]]:
        """Sentences outside the evidence, in order of similarity in length."""
        length = len(self.passage)
        others = [span for i, span in enumerate(self._spans) if i not in self._touched]
        return sorted(others, key=lambda span: abs(span[1] - span[0] - length))[:N_NULLS]

    def read(self) -> Step | None:
        """The best window of the document. Null: the best of those that lack the evidence. None if
        the model reads all of the evidence anyway."""
        if self.read_share >= 1:
            return None
        text, span = self._target.text, self.evidence
        windows = list(_windows(text, self._searched.tokens))
        scores = self._scores([text[a:b] for a, b in windows])
        lacking = [
            score
            for score, (a, b) in zip(scores, windows, strict=True)
            if b <= span.start or a >= span.end
        ]
        return self._step(max(scores), max(lacking) if lacking else None)

    def moved(self) -> tuple[Step | None, float | None]:
        """The evidence at the position that scores highest among those where the model reads it,
        and that position. Null: the sentence nearest in length, moved to where the document scores
        highest. Both are the best of several positions, because some order of the sentences scores
        higher by chance."""
        try:
            variants = self._variants(self.evidence)
        except UserError:  # a single sentence, or a script without sentence marks
            return None, None
        if not variants:
            return None, None
        others = self._variants(EvidenceSpan(*self._others()[0]))
        scores = self._scores([variant.text for variant in (*variants, *others)])
        moved, null = scores[: len(variants)], scores[len(variants) :]
        best = variants[int(np.argmax(moved))].position
        return self._step(max(moved), max(null, default=None)), best

    def _variants(self, span: EvidenceSpan) -> list[Variant]:
        """The document with this passage at each position where the model reads it whole."""
        target = self._target
        pair = TextPair("wanted", target.query, target.text, span, target.language)
        variants, _ = relocated(pair, N_POSITIONS)
        read = evidence_shares(variants, self._whole, self._searched.tokens)
        return [variant for variant, share in zip(variants, read, strict=True) if share >= 1]

    def alone(self) -> Step | None:
        """The evidence alone as a document. Null: other sentences."""
        if len(self._touched) == len(self._spans):
            return None
        text = self._target.text
        score, *nulls = self._scores([self.passage, *(text[a:b] for a, b in self._others())])
        return self._step(score, median_low(nulls) if nulls else None)


def _finite(score: float | None) -> float | None:
    return None if score is None or not np.isfinite(score) else score


def _windows(text: str, tokens: Callable[[str], TokenizedText]) -> Iterator[tuple[int, int]]:
    """Characters [start, end) of windows as long as the context limit, which cover the text; each
    overlaps the previous one by a quarter, and the last, which is as long as the others, by more:
    a shorter one would have the advantage of a short document."""
    starts = [start for start, _ in runs(text)]
    previous = start = 0
    while (read := tokens(text[start:])).truncated:
        end = start + max(1, read.read_until)
        yield start, end
        later = [at for at in starts if at >= start + 0.75 * (end - start)]
        previous, start = start, max(later[0], start + 1) if later else end
    possible = [at for at in starts if previous < at <= start]
    first = bisect_left(possible, True, key=lambda at: not tokens(text[at:]).truncated)
    yield (possible[first] if first < len(possible) else start), len(text)


def _above(
    target: Wanted, searched: Searched, passage: str, relevant: frozenset[str]
) -> Iterator[Above]:
    numbers = searched.above(target.number, MOST_ABOVE)
    # A spread at equal distances would favor one of several interleaved sources.
    drawn = np.random.default_rng(SEED).permutation(len(searched.ids))[: _SAMPLED + 1].tolist()
    sampled = [number for number in drawn if number != target.number][:_SAMPLED]
    texts = searched.texts([*numbers, *sampled])  # together, because that may read the whole corpus
    of_target = _shingles(target.text)
    boilerplate = _boilerplate(of_target, texts[len(numbers) :])
    evidence = _shingles(passage) - boilerplate
    for rank, (number, text) in enumerate(
        zip(numbers, texts[: len(numbers)], strict=True), start=1
    ):
        shingles = _shingles(text)
        own, its = of_target - boilerplate, shingles - boilerplate
        alike = len(own & its) >= _DUPLICATE * max(1, min(len(own), len(its)))
        holds = len(evidence) > _MIN_EVIDENCE - _SHINGLE and evidence <= shingles
        identity = searched.ids[number]
        yield Above(identity, rank, identity in relevant, alike or holds, len(text.split()))


def _boilerplate(of_target: Set[Shingle], sampled: Sequence[str]) -> set[Shingle]:
    """The 4-grams of the target document that many of the sampled documents share."""
    counts = Counter(shingle for text in sampled for shingle in of_target & _shingles(text))
    enough = max(_MIN_SHARED, _BOILERPLATE * len(sampled))
    return {shingle for shingle, count in counts.items() if count >= enough}


def _shingles(text: str) -> frozenset[Shingle]:
    """The word 4-grams of a text; a single n-gram if it has fewer than four words."""
    words = terms_of(text)
    n = min(_SHINGLE, len(words)) or 1
    return frozenset(words[i : i + n] for i in range(len(words) - n + 1))


def _without(rank: int, n_documents: int, above: Sequence[Above]) -> Step | None:
    """The rank without competitors. Null: the expected rank if as many other documents were removed
    at random, rounded up, so that it is in the top k only if the expected rank is."""
    n = sum(document.relevant or document.duplicate for document in above)
    if not n or rank == NOT_FOUND:
        return None
    expected = rank - n * (rank - 1) / max(1, n_documents - 1)
    return Step(rank - n, math.ceil(expected))
