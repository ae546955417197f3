"""The subject and the result of the study `why`, and its sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.datasets import Collection
from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.why_causes import Cause, Why, why_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.kinds.study_items import WhyItem
from poslens.compute.provenance import ModelIdentity

CHANGES: Mapping[Cause, str] = {
    "not read": "whole document read",
    "position": "evidence moved",
    "dilution": "evidence alone",
    "competitor": "without competitors",
}
"""Changes to a document or index, by the cause that they test."""
NULLS: Mapping[Cause, str] = {
    "not read": "only windows without the evidence",
    "position": "another sentence moved",
    "dilution": "other sentences alone",
    "competitor": "as many random documents removed",
}


@dataclass(frozen=True)
class WhyCorpus:
    """The queries with the documents that they should retrieve, and the corpus to search. `typed`
    is True for a single pair that the user named."""

    collection: Collection
    items: tuple[WhyItem, ...]
    selection: str
    typed: bool = False


@dataclass(frozen=True)
class Misses:
    """The subject for one model: the misses among the top k to explain."""

    spec: RetrieverSpec
    corpus: WhyCorpus
    top: int

    @property
    def method(self) -> Method:
        """The method under which explanations are stored."""
        return why_method(self.top)


@dataclass(frozen=True)
class WhySummary:
    """The explanations of one model by item, and the reasons why others failed."""

    asked: Misses
    model: ModelIdentity
    explained: Mapping[str, Why]
    failed: Mapping[str, str]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.asked.spec.name

    @cached_property
    def items(self) -> dict[str, WhyItem]:
        """The items that have an explanation, by name."""
        items = self.asked.corpus.items
        return {item.name: item for item in items if item.name in self.explained}

    @cached_property
    def misses(self) -> list[tuple[WhyItem, Why]]:
        """Target documents that are not in the top k, worst rank first."""
        misses = [
            (item, self.explained[name])
            for name, item in self.items.items()
            if self.explained[name].cause != "found"
        ]
        return sorted(misses, key=lambda pair: -pair[1].rank)

    @cached_property
    def missed(self) -> Estimate | None:
        """Share of target documents that are not in the top k."""
        rows = [explanation.cause != "found" for explanation in self.explained.values()]
        return _share(rows, [item.document_id for item in self.items.values()])

    def count(self, cause: Cause) -> int:
        """Number of misses with this cause."""
        return sum(explanation.cause == cause for _, explanation in self.misses)

    def share(self, cause: Cause) -> Estimate | None:
        """Share of the misses that have this cause."""
        rows = [explanation.cause == cause for _, explanation in self.misses]
        return _share(rows, [item.document_id for item, _ in self.misses])


def _share(rows: Sequence[bool], documents: Sequence[str]) -> Estimate | None:
    return estimate(np.array(rows, dtype=np.float64)[:, None], documents) if rows else None


# -- words -----------------------------------------------------------------------------------------


def rank_words(rank: int) -> str:
    """A rank as text."""
    return "not found" if rank == NOT_FOUND else f"{rank:,}"


def change_words(cause: Cause, why: Why) -> str:
    """A change to this document as a phrase, which follows a rank."""
    if cause == "position":
        return f"with the evidence moved to {why.best_position or 0:.0%} of the document"
    if cause == "competitor":
        parts = [
            f"{n:,} {words}"
            for n, words in (
                (why.duplicates_above, "near-duplicates"),
                (why.relevant_above, "other relevant documents"),
            )
            if n
        ]
        return f"without {' and '.join(parts)} above it"
    return {"not read": "if the model read all of it", "dilution": "as the evidence alone"}[cause]


def sentence(why: Why) -> str:
    """The verdict about one document: ranks, the null's rank and the cause."""
    rank, top = rank_words(why.rank), why.top
    head = f"{why.document_id} is at rank {rank} of {why.n_documents:,}"
    if why.rank == NOT_FOUND:
        head = f"{why.document_id} is not found"
    if why.cause == "found":
        return f"{head}, in the top {top:,}."
    steps = why.steps
    if why.cause in steps:
        step = steps[why.cause]
        null = (
            "" if step.null is None else f" (control, {NULLS[why.cause]}: {rank_words(step.null)})"
        )
        return (
            f"{head}. Rank {rank} → {rank_words(step.rank)} "
            f"{change_words(why.cause, why)}{null}. Cause: {why.cause}."
        )
    shared = f"{len(why.shared_words)} of {why.n_query_words} query words"
    if steps:
        best = min(steps, key=lambda cause: steps[cause].rank)
        tried = (
            f"No change brings it into the top {top:,} by itself (best: rank "
            f"{rank_words(steps[best].rank)} {change_words(best, why)})"
        )
    else:
        tried = "The document is one sentence, so nothing in it can be moved or left out"
    return f"{head}. {tried}; its evidence shares {shared}. Cause: no match."
