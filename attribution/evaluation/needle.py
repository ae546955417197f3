"""Needle grid: is one sentence found at every depth of texts of every length?

A needle is a sentence generated from a template ("The access code of the copper lighthouse is
48213."). It is inserted at a depth of 0 to 100% into a text of a given number of the model's own
tokens, built from other documents. Its question is scored against the texts of all needles of the
same length and depth, and the needle counts as found if its own text alone has the highest score.
A needle has the same text at all depths, so only its position differs. Follows the passkey task of
LongEmbed (arXiv 2404.12096) and arXiv 2412.15241.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.proportions import agresti_coull, mean_share
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import SHARE_MARGIN, Comparison, compared
from poslens.attribution.interventions.relocation import tokens_of
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.scoring import Known, score_texts
from poslens.attribution.text import joined, runs, sentences
from poslens.attribution.types import Method

NEEDLES = 20
MIN_LENGTH, MAX_LENGTH = 64, 1_000_000
MIN_NEEDLES, MAX_NEEDLES = 2, 100

_FIRST = tuple(
    "copper granite velvet amber cedar marble silver woollen crimson hollow frozen painted "
    "wooden golden striped rusty narrow quiet distant crooked".split()
)
_SECOND = tuple(
    "lighthouse orchard windmill harbour library bakery viaduct greenhouse quarry theatre "
    "brewery cottage fountain stable tunnel chapel vineyard sawmill pavilion granary".split()
)


@dataclass(frozen=True, slots=True)
class Needle:
    """A sentence and the question that only this sentence answers."""

    sentence: str
    question: str


def needles(n: int, seed: int = 0) -> tuple[Needle, ...]:
    """`n` needles about different things; among the first twenty, no two share a word of their
    name."""
    codes = random.Random(seed).sample(range(10_000, 100_000), n)
    many = len(_FIRST)
    needles = []
    for number, code in enumerate(codes):
        name = f"{_FIRST[number % many]} {_SECOND[(number + number // many) % many]}"
        needles.append(
            Needle(
                f"The access code of the {name} is {code}.",
                f"What is the access code of the {name}?",
            )
        )
    return tuple(needles)


def needle_method(n: int = NEEDLES, seed: int = 0) -> Method:
    """The method under which the cells of a grid are stored and shown."""
    return Method("needle", {"needles": n, "seed": seed, "version": 1})


@dataclass(frozen=True, slots=True)
class NeedleCell:
    """One length and depth: the rank [n] of each needle's own text among all n (ties get the
    worst rank), and the texts' token counts [n]. `n_repeated` texts repeat sentences, because
    the corpus has too few."""

    ranks: tuple[int, ...]
    tokens: tuple[int, ...]
    n_repeated: int

    def __post_init__(self) -> None:
        n = len(self.ranks)
        if not n or len(self.tokens) != n or not all(1 <= rank <= n for rank in self.ranks):
            raise ValueError("no ranks of a cell")
        if min(self.tokens) < 0 or not 0 <= self.n_repeated <= n:
            raise ValueError("no counts of a cell")

    @property
    def found(self) -> list[bool]:
        """Which needles are retrieved, as booleans [n]."""
        return [rank == 1 for rank in self.ranks]


@dataclass(frozen=True)
class Haystacks:
    """Texts of a corpus around needles, as one retriever counts tokens.

    Each needle has its own random order of the documents. Its text begins with the first and
    continues to the required length, starting over at the end of the corpus. The text of a length
    is the same at every depth and cached.
    """

    retriever: Retriever
    documents: Sequence[tuple[str, str | None]]
    needles: Sequence[Needle]
    seed: int = 0
    _kept: dict[tuple[int, int], tuple[list[str], bool]] = field(default_factory=dict)

    def text(self, number: int, length: int, depth: float) -> tuple[str, int, bool]:
        """The text of a needle, its number of tokens, and whether it repeats sentences.

        Raises:
            UserError: the needle alone is longer.
        """
        needle = self.needles[number]
        if (number, length) not in self._kept:
            self._kept[number, length] = self._filler(number, length)
        filler, repeated = self._kept[number, length]
        while (n := self._fits(needle, text := _placed(filler, needle, depth), length)) is None:
            if not filler:
                raise UserError(f"A needle has more than {length} tokens: choose longer texts.")
            *rest, last = filler
            shorter = runs(last)[:-1]
            filler = [*rest, last[: shorter[-1][1]]] if shorter else rest
        return text, n, repeated

    def _filler(self, number: int, length: int) -> tuple[list[str], bool]:
        """Sentences that together with the needle have `length` tokens, cut at a word."""
        order = list(range(len(self.documents)))
        random.Random(f"{self.seed} {number}").shuffle(order)
        needle, listed, repeated = self.needles[number], [], False
        left = length - len(tokens_of(self.retriever, needle.question, needle.sentence))
        while left > 0:
            before = left
            for sentence in chain.from_iterable(_sentences(*self.documents[at]) for at in order):
                with suppress(UserError):  # the sentence has no token with text
                    read = tokens_of(self.retriever, needle.question, sentence)
                    left -= read.n_tokens_full
                    listed.append(sentence)
                if left <= 0:
                    break
            if left == before:
                raise UserError(
                    "The model can't read any sentence of the corpus: choose another corpus."
                )
            repeated = repeated or left > 0
        return self._cut(needle, listed, length), repeated

    def _cut(self, needle: Needle, listed: list[str], length: int) -> list[str]:
        """The longest prefix of the sentences, in whole words or, in scripts without spaces,
        characters, that fits; found by bisection."""
        texts = [" ".join(text.split()) for text in listed]
        ends = [(row, end) for row, text in enumerate(texts) for _, end in runs(text)]

        def prefix(n: int) -> list[str]:
            if not n:
                return []
            row, end = ends[n - 1]
            return [*texts[:row], texts[row][:end]]

        def too_long(n: int) -> bool:
            return self._fits(needle, _placed(prefix(n), needle, 100), length) is None

        return prefix(bisect_left(range(1, len(ends) + 1), True, key=too_long))

    def _fits(self, needle: Needle, text: str, length: int) -> int | None:
        """Number of tokens of a text, including special ones; None if it exceeds `length` or the
        model's context limit."""
        read = tokens_of(self.retriever, needle.question, text)
        n = read.n_tokens_full + int((~read.content).sum())
        return None if read.truncated or n > length else n


def _sentences(text: str, language: str | None) -> list[str]:
    return [text[start:end] for start, end in sentences(text, language)]


def _placed(filler: Sequence[str], needle: Needle, depth: float) -> str:
    """The filler with the needle between two sentences, where the share of its characters before
    the needle is closest to `depth` percent."""
    ends = np.array([0, *accumulate(len(sentence) for sentence in filler)])
    at = int(np.abs(ends - depth / 100 * ends[-1]).argmin()) if depth < 100 else len(filler)
    return joined([*filler[:at], needle.sentence, *filler[at:]])


def cell(
    haystacks: Haystacks, length: int, depth: float, cached: Known | None = None
) -> NeedleCell:
    """Rank the texts of one length and depth for each needle's question. Encodings in `cached`,
    such as those of the questions, are reused.

    Raises:
        UserError: a text cannot be made or scored.
        Stopped: canceled (`stoppable`).
    """
    n = len(haystacks.needles)
    texts = [haystacks.text(number, length, depth) for number in range(n)]
    pairs = [(needle.question, text) for needle in haystacks.needles for text, _, _ in texts]
    scores = score_texts(haystacks.retriever, pairs, cached=cached)
    scores = scores.reshape(n, n)
    ranks = (scores >= scores.diagonal()[:, None]).sum(1)
    return NeedleCell(
        tuple(int(rank) for rank in ranks),
        tuple(tokens for _, tokens, _ in texts),
        sum(repeated for _, _, repeated in texts),
    )


def in_first_third(depth: float) -> bool:
    """Whether a depth in percent is in the first third."""
    return depth < 100 / 3


def in_last_third(depth: float) -> bool:
    """Whether a depth in percent is in the last third."""
    return depth > 200 / 3


@dataclass(frozen=True)
class NeedleGrid:
    """The computed cells of a model, by length and depth. For a model that is `order_blind`, shares
    are equal at all depths by construction and not by chance."""

    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    cells: Mapping[tuple[int, float], NeedleCell]
    order_blind: bool = False

    @property
    def n(self) -> int:
        """Number of needles in a cell."""
        return max((len(cell.ranks) for cell in self.cells.values()), default=0)

    def accuracy(self, length: int, depth: float) -> Estimate | None:
        """Share of a cell's needles that are retrieved, with its Agresti-Coull interval."""
        cell = self.cells.get((length, depth))
        return None if cell is None else agresti_coull(sum(cell.found), len(cell.ranks))

    def mean(self, length: int | None = None) -> Estimate | None:
        """Share of all needles that are retrieved, in texts of `length` or of any length; the
        interval resamples needles, each with all its texts."""
        rows = self._rows(lambda at, depth: length in (None, at))
        return None if rows is None else mean_share(rows.mean(1), resampled="needles")

    @property
    def last_minus_first(self) -> Comparison | None:
        """Share retrieved in the last third of depths compared with that in the first; a negative
        difference is primacy. None if a third is empty."""
        early = self._rows(lambda length, depth: in_first_third(depth))
        late = self._rows(lambda length, depth: in_last_third(depth))
        if early is None or late is None:
            return None
        change = (late.mean(1) - early.mean(1))[:, None]
        largest = None if self.order_blind else 1.0
        return compared(change, None, SHARE_MARGIN, largest=largest, resampled="needles")

    def _rows(self, includes: Callable[[int, float], bool]) -> np.ndarray | None:
        """Which needles were retrieved in the selected cells [needles, cells]."""
        rows = [
            cell.found for (length, depth), cell in self.cells.items() if includes(length, depth)
        ]
        return np.array(rows, dtype=np.float64).T if rows else None
