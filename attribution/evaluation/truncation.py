"""Where a model actually truncates: the last word of a text that changes its vector, found by
bisection on the text (docs/methods.md, section 14). It needs only vectors of texts, so it also
works for endpoints that return nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Separate
from poslens.attribution.text import words
from poslens.attribution.types import Method

Embed = Callable[[str], NDArray[np.floating]]
"""The vector [H] of a text."""

NOISE = 1e-5
"""Vectors count as equal up to this distance, relative to their length, or up to ten times the
distance between two vectors of the same text, if the model is less deterministic."""

TRUNCATION = Method("truncation", {"version": 1})


@dataclass(frozen=True, slots=True)
class LastWord:
    """The last word of a text that changes its vector: number `word` from 1 of `n_words`, which
    ends at character `end`."""

    word: int
    n_words: int
    end: int


def last_word(embed: Embed, text: str, expected_end: int | None = None) -> LastWord:
    """Bisect on beginnings of the text: the shortest one that has the whole text's vector ends with
    the last word that is read. Computes about log2(words) vectors, but only four if the last word
    contains character `expected_end` or ends there. If only punctuation follows that word, it is
    the last word of the text: some tokenizers drop punctuation.

    Raises:
        UserError: the text has no word, or a vector is not finite.
    """
    ends = [end for _, end in words(text)]
    if not ends:
        raise UserError("The text has no words to remove: choose another.")
    whole = _vector(embed, text)
    size = float(np.linalg.norm(whole)) or 1.0
    noise = float(np.linalg.norm(_vector(embed, text) - whole)) / size
    near = max(NOISE, 10 * noise)
    low, high = 0, len(ends)  # `low` words are too few, `high` are enough
    expected = 0 if expected_end is None else bisect_left(ends, expected_end) + 1
    probes = [expected, expected - 1]
    while high - low > 1:
        middle = probes.pop(0) if probes else (low + high) // 2
        if not low < middle < high:
            continue
        distance = np.linalg.norm(_vector(embed, text[: ends[middle - 1]]) - whole) / size
        if distance > near:
            low = middle
        else:
            high = middle
    if not any(map(str.isalnum, text[ends[high - 1] :])):
        high = len(ends)
    return LastWord(high, len(ends), ends[high - 1])


def _vector(embed: Embed, text: str) -> NDArray[np.float64]:
    values = np.asarray(embed(text), dtype=np.float64)
    if not np.isfinite(values).all():
        raise UserError("The model returned a vector that is not finite: use float32.")
    return values


@dataclass(frozen=True, slots=True)
class Truncation:
    """What a model read of one text, and its stated context limit.

    Tokens are numbered from 1, after all special tokens: the last word that changes the vector has
    the tokens `first` to `last` of the text's `n_tokens`; `claimed` is the limit that the model
    states. The text consists of `documents` documents.
    """

    documents: int
    n_words: int
    word: int
    n_tokens: int
    first: int
    last: int
    claimed: int

    def __post_init__(self) -> None:
        if not (1 <= self.word <= self.n_words and 0 <= self.first <= self.last):
            raise ValueError("no words of a text")
        if self.documents < 1 or self.n_tokens < 1 or self.claimed < 0:
            raise ValueError("no tokens of a text")

    @property
    def reads_all(self) -> bool:
        """Whether the text was read to its end: to its last word, or to a word whose token is the
        last one, as where the following words belong to the same unknown token."""
        return self.word == self.n_words or self.last >= self.n_tokens

    @property
    def as_claimed(self) -> bool:
        """Whether the model read as much as it says: up to its limit, or all of a shorter text."""
        if self.n_tokens <= self.claimed:
            return self.reads_all
        return self.first <= self.claimed <= self.last


def truncation(retriever: Separate, embed: Embed, text: str, documents: int = 1) -> Truncation:
    """Where the model stops reading `text`.

    Raises:
        UserError: as `last_word`.
    """
    whole = retriever.encode_texts([text], "document").texts[0]
    last = last_word(embed, text, whole.read_until)
    starts = [start for start, _ in words(text)]
    before = text[: starts[last.word - 1]].rstrip()
    upto = retriever.encode_texts([text[: last.end]], "document").texts[0]
    special = int(whole.special.sum())
    ahead = retriever.encode_texts([before], "document").texts[0].n_tokens_full if before else 0
    return Truncation(
        documents=documents,
        n_words=last.n_words,
        word=last.word,
        n_tokens=whole.n_tokens_full + special,
        first=min(ahead + 1, upto.n_tokens_full) + special,
        last=upto.n_tokens_full + special,
        claimed=whole.max_length,
    )


def long_texts(documents: Sequence[str], enough: int) -> list[tuple[str, int]]:
    """Texts to try, each with its number of documents: every document of at least `enough`
    characters, or else the documents joined until they have that many."""
    long = [(document, 1) for document in documents if len(document) >= enough]
    if long:
        return long
    joined, n = "", 0
    for document in documents:
        joined, n = f"{joined} {document}".strip(), n + 1
        if len(joined) >= enough:
            break
    return [(joined, n)] if joined else []
