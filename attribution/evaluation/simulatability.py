"""Simulatability: can a reader who sees only a few words of two documents predict which one a model
scores higher, and do words chosen by an attribution method help?

Doshi-Velez and Kim (2017) call this forward simulation, and Hase and Bansal (2020) compare it with
predictions from other words. Here the reader is a program: it predicts the document whose words are
more similar to the query, by the cosine of TF-IDF vectors of character n-grams. It reads words
without their contributions, because those of an additive method sum to the score.

The result depends on this reader. A method that chooses words which resemble the query helps it
even if the model ignores them; `similar` shows how far such words alone lead.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import SEED

VIEWS = {
    "explanation": "the words with the largest contributions",
    "random": "words drawn at random, the mean of 10 draws",
    "first": "the first words",
    "similar": "the words most similar to the query",
    "all": "all words that the model reads",
}
"""What a reader sees of each document, by name."""

N_RANDOM = 10
_N_GRAMS = (3, 5)


@dataclass(frozen=True, slots=True)
class ReadWords:
    """The words of a document that the model read, in order, and the contribution of each [n]."""

    words: tuple[str, ...]
    contributions: NDArray[np.float64]

    def largest(self, n: int) -> tuple[int, ...]:
        """Indices of the n words with the largest contributions, in text order. Of equal
        contributions the earlier word is chosen."""
        return _first_of(-self.contributions, n)

    def drawn(self, n: int, generator: random.Random) -> tuple[int, ...]:
        """Indices of n different words at random, in text order."""
        count = len(self.words)
        return tuple(sorted(generator.sample(range(count), min(n, count))))

    def text(self, indices: Iterable[int]) -> str:
        """These words, separated by spaces."""
        return " ".join(self.words[index] for index in indices)


@dataclass(frozen=True, slots=True)
class ForcedChoice:
    """A query and two documents; the model scores `higher` above `lower`."""

    choice_id: str
    query: str
    higher: ReadWords
    lower: ReadWords


class Simulator:
    """The program that reads words and predicts. Its n-grams are weighted by their frequency in
    `documents`."""

    def __init__(self, documents: Sequence[str]) -> None:
        # Imported here because this takes a second and few calls need it.
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._vectorizer = TfidfVectorizer(
            analyzer="char_wb", ngram_range=_N_GRAMS, sublinear_tf=True
        ).fit(documents)

    def similarities(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Cosine of each text to the query [n], 0 to 1; 0 for a text without a known n-gram."""
        vectors: Any = self._vectorizer.transform([query, *texts])
        return np.asarray((vectors[1:] @ vectors[0].T).toarray()[:, 0], dtype=np.float64)

    def similar(self, query: str, read: ReadWords, n: int) -> tuple[int, ...]:
        """Indices of the n words most similar to the query, in text order."""
        return _first_of(-self.similarities(query, read.words), n)

    def credit(self, query: str, higher: str, lower: str) -> float:
        """1 if the words of the higher-scored document are more similar to the query, 0 if those of
        the other are, 0.5 if both are equally similar."""
        first, second = self.similarities(query, [higher, lower])
        return float(np.sign(first - second) + 1) / 2


def predictions(simulator: Simulator, choice: ForcedChoice, n: int) -> dict[str, float]:
    """The share of correct predictions, 0 to 1, from n words of each document, by view (`VIEWS`).

    `random` is a mean over draws; every other view is one prediction, and a tie is 0.5.
    """
    sides, query = (choice.higher, choice.lower), choice.query

    def credit(shown: Sequence[Sequence[int]]) -> float:
        texts = [side.text(indices) for side, indices in zip(sides, shown, strict=True)]
        return simulator.credit(query, *texts)

    # Depends on the choice alone, so that all methods are compared with the same random words.
    generator = random.Random(zlib.crc32(choice.choice_id.encode()) ^ SEED)
    draws = [[side.drawn(n, generator) for side in sides] for _ in range(N_RANDOM)]
    return {
        "explanation": credit([side.largest(n) for side in sides]),
        "random": float(np.mean([credit(shown) for shown in draws])),
        "first": credit([range(min(n, len(side.words))) for side in sides]),
        "similar": credit([simulator.similar(query, side, n) for side in sides]),
        "all": credit([range(len(side.words)) for side in sides]),
    }


def _first_of(keys: NDArray[np.float64], n: int) -> tuple[int, ...]:
    """Indices of the n smallest keys, ascending."""
    return tuple(sorted(np.argsort(keys, kind="stable")[:n].tolist()))
