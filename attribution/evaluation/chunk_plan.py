"""Which way to chunk documents should an index use?

A setting is a way to chunk documents: whole, windows of some size and overlap, windows that begin
with the document's title, or late chunks. Every setting is tried on the same corpus. The best one
is chosen on half of the documents and compared with whole documents on the other half; the split is
random with a fixed seed (docs/methods.md, section 14).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate, estimate, ratio
from poslens.attribution.curves.proportions import even_if_constant
from poslens.attribution.evaluation.chunks import WHOLE, Chunks
from poslens.attribution.evaluation.comparison import SHARE_MARGIN, Comparison, compared
from poslens.attribution.evaluation.document_index import Ints
from poslens.attribution.evaluation.ranking_change import halves
from poslens.attribution.evaluation.recommendation import MARGIN, Wanted
from poslens.attribution.types import Method

TIMED = 16
"""Number of documents that are encoded to measure the time per document."""
UNKNOWN = -1
"""In place of a number of chunks: it is unknown."""


@dataclass(frozen=True, slots=True)
class IndexSetting:
    """A way to chunk documents; with `titled`, windows after the first begin with the title."""

    chunks: Chunks
    titled: bool = False

    def __str__(self) -> str:
        return f"{self.chunks}+title" if self.titled else str(self.chunks)

    def title(self, unit: str = "tokens") -> str:
        """Its name in sentences; `unit` is what its size counts."""
        if self.chunks == WHOLE:
            return "whole documents"
        name, comma, overlap = self.chunks.title.partition(",")
        return f"{name} {unit}{comma}{overlap}{', with the title' if self.titled else ''}"

    @property
    def method(self) -> Method:
        """The method under which its results are stored."""
        # Version 2: late chunks have all of their tokens even if pooling excludes the prompt.
        version = 2 if self.chunks.kind == "late" else 1
        parameters = {"chunks": str(self.chunks), "titled": self.titled, "version": version}
        return Method("chunk_plan", parameters)


def settings_of(
    sizes: Sequence[int],
    overlaps: Sequence[float],
    *,
    windows: bool = True,
    titled: bool = True,
    late: bool = True,
) -> tuple[IndexSetting, ...]:
    """Whole documents, windows of these sizes (tokens) and overlaps (percent of the size), the same
    with titles, and late chunks of these sizes. Settings with fewer vectors come first."""
    tried = [IndexSetting(WHOLE)]
    for size in sorted(sizes, reverse=True):
        tokens = sorted({min(size - 1, round(size * percent / 100)) for percent in overlaps})
        if late:
            tried.append(IndexSetting(Chunks("late", size)))
        for overlap in tokens:
            chunks = Chunks("windows", size, overlap)
            tried += [IndexSetting(chunks)] * windows + [IndexSetting(chunks, titled=True)] * titled
    return tuple(tried)


@dataclass(frozen=True, slots=True)
class DocumentChunks:
    """The results of one setting for a document: the number of its `vectors` in the index, the
    `ranks` [S] at which its sentences retrieve it and, for each of the Q queries that it answers,
    the `query_ranks` [Q] of the best document that answers the query, and whether the evidence is
    `cut` [Q]: 1 if no chunk contains all of it as the model reads it, else 0; -1 if that is unknown
    or there is no evidence. A rank is 0 if the model reads no token of the query."""

    document_id: str
    vectors: int
    ranks: Ints
    query_ranks: Ints
    cut: Ints

    def __post_init__(self) -> None:
        if self.vectors < 0 or (self.ranks < 0).any() or (self.query_ranks < 0).any():
            raise ValueError("no ranks of sentences and queries")
        if self.ranks.ndim != 1 or self.query_ranks.ndim != 1:
            raise ValueError("not one rank of each sentence and query")
        if self.cut.shape != self.query_ranks.shape or not np.isin(self.cut, (-1, 0, 1)).all():
            raise ValueError("no queries of a document")


@dataclass(frozen=True, slots=True)
class EncodingTime:
    """Seconds [n] that it took to encode each of n documents."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds) < 0:
            raise ValueError("no seconds of documents")


@dataclass(frozen=True)
class Tried:
    """The results of one setting by document."""

    setting: IndexSetting
    documents: Mapping[str, DocumentChunks]
    time: EncodingTime | None = None

    @property
    def n_vectors(self) -> int:
        """Vectors of the whole corpus."""
        return sum(document.vectors for document in self.documents.values())

    @property
    def vectors(self) -> Estimate | None:
        """Mean vectors per document."""
        rows = np.array([[document.vectors] for document in self.documents.values()])
        return estimate(rows) if len(rows) else None

    @property
    def seconds(self) -> Estimate | None:
        """Mean seconds that encoding a document takes; None if that was not measured."""
        return None if self.time is None else estimate(np.array([self.time.seconds]).T)


# -- measures --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkMeasure:
    """A mean over the sentences or queries of documents: `count(document, top)` returns a
    document's sum and its number of sentences or queries. `wanted` is the better direction;
    `margin` is the difference up to which two means are equivalent. The mean `is_share` if readers
    expect it in percent."""

    title: str
    wanted: Wanted
    margin: float
    count: Callable[[DocumentChunks, int], tuple[float, int]]
    is_share: bool = False

    @property
    def heading(self) -> str:
        """The title without its article, for tables and lists."""
        return self.title.removeprefix("the ")

    def share(self, tried: Tried, documents: Sequence[str], top: int) -> Estimate | None:
        """The share over these documents; None if there is nothing to count."""
        rows = np.array([self.count(tried.documents[key], top) for key in documents], np.float64)
        if not rows.size or not rows[:, 1].any():
            return None
        share = estimate(rows, None, ratio, counts=rows[:, 1])
        return None if share is None else even_if_constant(share)

    def change(
        self, before: Tried, after: Tried, documents: Sequence[str], top: int
    ) -> Comparison | None:
        """The share after minus before, over the documents for which both have the same count; None
        if there is nothing to count."""
        rows = []
        for key in documents:
            old, n = self.count(before.documents[key], top)
            new, n_new = self.count(after.documents[key], top)
            if n and n == n_new:
                rows.append((new - old, n))
        if not rows:
            return None
        # Without a document of two chunks, both are one index and equal by construction.
        same = before.n_vectors == after.n_vectors == len(before.documents)
        largest = None if same else 1.0
        values = np.array(rows)
        return compared(values, None, self.margin, ratio, counts=values[:, 1], largest=largest)


def _unretrieved(document: DocumentChunks, top: int) -> tuple[float, int]:
    asked = document.ranks > 0
    return float((document.ranks[asked] > top).sum()), int(asked.sum())


def _reciprocal_rank(document: DocumentChunks, top: int) -> tuple[float, int]:
    ranks = document.query_ranks[document.query_ranks > 0]
    return float((1 / ranks).sum()), len(ranks)


def _cut(document: DocumentChunks, top: int) -> tuple[float, int]:
    read = document.cut != UNKNOWN
    return float(document.cut[read].sum()), int(read.sum())


Name = Literal["unretrieved", "reciprocal_rank", "cut"]
MEASURES: Mapping[Name, ChunkMeasure] = {
    "unretrieved": ChunkMeasure(
        "the share of unretrieved sentences", "lower", SHARE_MARGIN, _unretrieved, is_share=True
    ),
    "reciprocal_rank": ChunkMeasure(
        "the mean reciprocal rank of the queries", "higher", MARGIN, _reciprocal_rank
    ),
    "cut": ChunkMeasure("the share of cut evidence", "lower", SHARE_MARGIN, _cut, is_share=True),
}


# -- choice ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SettingChoice:
    """The setting `chosen` on half of the documents, and the `reference` with which it is compared
    on the other half, `held_out`: whole documents, or the best other setting if whole documents
    were chosen."""

    chosen: Tried
    reference: Tried
    held_out: tuple[str, ...]

    def changes(self, top: int) -> dict[Name, Comparison | None]:
        """Each measure of the chosen setting minus that of the reference."""
        return {
            name: measure.change(self.reference, self.chosen, self.held_out, top)
            for name, measure in MEASURES.items()
        }


def losses(tried: Sequence[Tried], documents: Sequence[str], top: int) -> list[float]:
    """The loss of each setting: mean of the share of unretrieved sentences, 1 minus the mean
    reciprocal rank, and the share of cut evidence; 0 is best, 1 worst. Measures that are undefined
    for a setting are left out for all, because means of different measures can't be compared."""
    columns = []
    for measure in MEASURES.values():
        shares = [measure.share(option, documents, top) for option in tried]
        values = [share.value for share in shares if share is not None]
        if len(values) == len(tried):
            lower = measure.wanted == "lower"
            columns.append([value if lower else 1 - value for value in values])
    return np.mean(columns, axis=0).tolist() if columns else [0.0] * len(tried)


def choose(tried: Sequence[Tried], top: int) -> SettingChoice | None:
    """Choose the setting with the fewest vectors among those whose loss on half of the documents is
    within 0.02 of the smallest, the first in a tie. None for fewer than two settings or
    documents. The first setting is whole documents."""
    if len(tried) < 2:
        return None
    shared = [key for key in tried[0].documents if all(key in option.documents for option in tried)]
    if len(shared) < 2:
        return None
    first_half = halves(shared)
    choosing = [key for key, is_first in zip(shared, first_half, strict=True) if is_first]
    held_out = tuple(key for key, is_first in zip(shared, first_half, strict=True) if not is_first)
    loss_of = {
        str(option.setting): loss
        for option, loss in zip(tried, losses(tried, choosing, top), strict=True)
    }

    def cheapest(some: Sequence[Tried]) -> Tried:
        limit = min(loss_of[str(tried.setting)] for tried in some) + SHARE_MARGIN
        return min(
            (tried for tried in some if loss_of[str(tried.setting)] <= limit),
            key=lambda option: option.n_vectors,
        )

    chosen = cheapest(tried)
    reference = tried[0] if chosen is not tried[0] else cheapest(tried[1:])
    return SettingChoice(chosen, reference, held_out)
