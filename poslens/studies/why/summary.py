"""The subject and the result of the study `why`, its sentences and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.proportions import mean_share
from poslens.attribution.datasets import Collection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import SHARE_MARGIN
from poslens.attribution.evaluation.document_index import NOT_FOUND
from poslens.attribution.evaluation.why_causes import CAUSES, Cause, Source, Step, Why
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.kinds.study_items import WhyItem
from poslens.paired import ItemMeasure
from poslens.rows import PERCENT, ModelRow, Table, column
from poslens.studies.audit.run import require_family
from poslens.studies.debias.points import require_trainable
from poslens.study import Asked, ModelSummary

CHANGES: Mapping[Cause, str] = {
    "competitor": "without competitors",
    "not read": "whole document read",
    "position": "evidence moved",
    "dilution": "evidence alone",
}
"""Changes to a document or index, by the cause that they test, in the order of testing."""
NULLS: Mapping[Cause, str] = {
    "not read": "only windows without the evidence",
    "position": "another sentence moved",
    "dilution": "other sentences alone",
    "competitor": "as many random documents removed",
}

SOURCES: Mapping[Source, str] = {
    "marked": "marked by you",
    "data set": "marked in the data set",
    "proposed": "proposed by PosLens, because it scores highest on its own",
}
"""Who marked the evidence, as a phrase that follows it."""


@dataclass(frozen=True)
class WhyCorpus:
    """The queries with the documents that they should retrieve, and the corpus to search. `typed`
    is True for a single pair that the user named."""

    collection: Collection
    items: tuple[WhyItem, ...]
    selection: str
    typed: bool = False


@dataclass(frozen=True)
class WhySummary(ModelSummary[Asked[WhyCorpus]]):
    """The explanations of one model by item, and the reasons why others failed."""

    explained: Mapping[str, Why]
    failed: Mapping[str, str]

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

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes that are tested, in that order: all but *not read* if it is unknown how much
        the model reads."""
        unknown = limits.unknown(self.asked.spec)
        return tuple(cause for cause in CAUSES if not (unknown and cause == "not read"))

    @cached_property
    def missed(self) -> Estimate | None:
        """Share of target documents that are not in the top k."""
        rows = [explanation.cause != "found" for explanation in self.explained.values()]
        return mean_share(rows, [item.document_id for item in self.items.values()])

    def count(self, cause: Cause) -> int:
        """Number of misses with this cause."""
        return sum(explanation.cause == cause for _, explanation in self.misses)

    def unspecific(self, cause: Cause) -> int:
        """Number of misses with this cause whose control is in the top k, too."""
        return sum(why.cause == cause and _unspecific(why) for _, why in self.misses)

    def share(self, cause: Cause) -> Estimate | None:
        """Share of the misses that have this cause; None if it is not tested."""
        if cause not in self.causes:
            return None
        rows = [explanation.cause == cause for _, explanation in self.misses]
        return mean_share(rows, [item.document_id for item, _ in self.misses])

    @cached_property
    def measures(self) -> tuple[ItemMeasure, ...]:
        """The share of target documents that are missed, in all and for each cause."""
        documents = {(name, item.corpus): item.document_id for name, item in self.items.items()}
        titles: dict[str, tuple[Cause, ...]] = {"share missed": CAUSES}
        titles |= {f"share missed ({each})": (each,) for each in self.causes}

        def measure(title: str, causes: Sequence[str]) -> ItemMeasure:
            rows = {
                item: np.array([self.explained[item[0]].cause in causes], dtype=np.float64)
                for item in documents
            }
            units = "query-document pairs"
            return ItemMeasure(
                title, units, SHARE_MARGIN, rows, documents, share=True, label=self._label
            )

        return tuple(measure(title, causes) for title, causes in titles.items())

    def _label(self, measured: tuple[str, str]) -> str:
        """Ids of the query and the document."""
        item = self.items[measured[0]]
        return f"{item.query_id or item.query}, {item.document_id}"


# -- words -----------------------------------------------------------------------------------------


def rank_words(rank: int) -> str:
    """A rank as text."""
    return "not found" if rank == NOT_FOUND else f"{rank:,}"


def fits(require: Callable[[RetrieverSpec], None], spec: RetrieverSpec) -> bool:
    """Whether a model passes a check that otherwise raises a UserError."""
    try:
        require(spec)
    except UserError:
        return False
    return True


def remedy(cause: Cause, spec: RetrieverSpec) -> str:
    """What to change, by cause: a suggestion, which the explanation itself does not test. Studies
    that refuse the model are not suggested."""
    compete = "chunks of other documents then compete, too" + (
        ", so compare chunk sizes first" if fits(require_family, spec) else ""
    )
    debiased = " or a debiased model" if fits(require_trainable, spec) else ""
    remedies: Mapping[Cause, str] = {
        "not read": "Smaller chunks, or a model with a longer context, would make all of it "
        f"readable; {compete}.",
        "position": f"Smaller chunks{debiased} may bring it up.",
        "dilution": "Smaller chunks would separate the evidence from the rest of the document; "
        f"{compete}.",
        "no match": "Another model may relate the query to the evidence.",
        "competitor": "The index has several answers, or documents that share most of their text "
        "with this one: remove duplicates, or return more documents.",
    }
    return remedies[cause]


def change_words(cause: Cause, why: Why) -> str:
    """A change to this document as a phrase, which follows a rank."""
    if cause == "position":
        return f"with the evidence moved to {why.best_position or 0:.0%} of the document"
    if cause == "competitor":
        parts = [
            counted(n, noun)
            for n, noun in (
                (why.duplicates_above, "near-duplicate"),
                (why.relevant_above, "other relevant document"),
            )
            if n
        ]
        return f"without {' and '.join(parts)} above it"
    return {"not read": "if the model read all of it", "dilution": "as the evidence alone"}[cause]


def everything(n_documents: int, top: int) -> str:
    """The end of a sentence about a corpus that is not larger than the top k."""
    return (
        f"the top {top:,} includes all {counted(n_documents, 'document')}: choose a smaller top k."
    )


def sentence(why: Why, spec: RetrieverSpec) -> str:
    """The verdict about one document and a model: ranks, the null's rank, the cause and what to
    change, and, if nobody marked the evidence, that PosLens proposed it."""
    proposed = why.source == "proposed" and why.cause != "found"
    return _verdict(why, spec) + (f" The evidence was {SOURCES['proposed']}." if proposed else "")


def _verdict(why: Why, spec: RetrieverSpec) -> str:
    rank, top = rank_words(why.rank), why.top
    head = f"{why.document_id} is at rank {rank} of {why.n_documents:,}"
    if why.rank == NOT_FOUND:
        head = f"{why.document_id} is not found"
    if why.cause == "found":
        if why.n_documents <= top:
            return f"{head}: {everything(why.n_documents, top)}"
        return f"{head}, in the top {top:,}."
    steps = why.steps
    if (decisive := why.decisive) is not None:
        step = steps[decisive]
        null = (
            "" if step.null is None else f" (control, {NULLS[decisive]}: {rank_words(step.null)})"
        )
        unread = (
            ""
            if decisive == why.cause
            else f" Where the evidence is, the model reads {why.evidence_read:.0%} of it."
        )
        return (
            f"{head}. Rank {rank} → {rank_words(step.rank)} "
            f"{change_words(decisive, why)}{null}.{unread}{_ruled_out(why)} Cause: {why.cause}."
            f"{UNSPECIFIC if _unspecific(why) else ''} "
            f"{remedy(why.cause, spec)}"
        )
    shared = f"{len(why.shared_words)} of {why.n_query_words} query words"
    ruled_out = _ruled_out(why)
    if others := {cause: step for cause, step in steps.items() if step.rank > top}:
        best = min(others, key=lambda cause: others[cause].rank)
        better = others[best].rank < why.rank
        result = (
            f"best: rank {rank_words(others[best].rank)} {change_words(best, why)}"
            if better
            else "none improves its rank"
        )
        other = "other " if ruled_out else ""
        tried = f"No {other}change brings it into the top {top:,} by itself ({result})"
    elif steps:
        tried = "No other change is possible"
    else:
        tried = "The document is one sentence, so nothing in it can be moved or left out"
    return (
        f"{head}. {tried}; its evidence shares {shared}.{ruled_out} Cause: no match. "
        f"{remedy('no match', spec)}"
    )


UNSPECIFIC = (
    " The control brings it into the top k, too, so this change is no evidence of the cause."
)


def _unspecific(why: Why) -> bool:
    """Whether the control of the change that names the cause is in the top k, too. That of moving
    the evidence counts in `named`, which then rules position out unless it gains far less."""
    if why.decisive is None or why.decisive == "position":
        return False
    null = why.steps[why.decisive].null
    return null is not None and null <= why.top


def _ruled_out(why: Why) -> str:
    """A sentence if moving the evidence suffices although position is not the cause; empty
    otherwise."""
    step = why.steps.get("position")
    if step is None or step.rank > why.top or why.cause not in ("dilution", "no match"):
        return ""
    null = "" if step.null is None else f" ({NULLS['position']}: {rank_words(step.null)})"
    return (
        f" Position is ruled out, although moving the evidence brings it to rank "
        f"{rank_words(step.rank)}{null}."
    )


# -- tables ----------------------------------------------------------------------------------------

RANK = "Rank after the change; null if the change is impossible or the document is not found."
NULL = "Rank after the change's control."


@dataclass(frozen=True)
class MissRow(ModelRow):
    """A target document that is not in the top k, with the rank after each change."""

    query: str = column("Id of the query, or its text if the data set lacks it.")
    document: str = column("Id of the target document.")
    rank: int | None = column("Rank of that document; null if it has no term of the query.")
    cause: str = column("not read, position, dilution, no match or competitor.")
    all_read: int | None = column(
        "The model reads all of the document. " + RANK, title="rank, whole document read"
    )
    all_read_null: int | None = column(
        "Windows without the evidence. " + NULL, title="control, whole document read", shown=False
    )
    moved: int | None = column(
        "The evidence is at the position that scores highest. " + RANK,
        title="rank, evidence moved",
    )
    moved_null: int | None = column(
        "Another sentence moves. " + NULL, title="control, evidence moved", shown=False
    )
    alone: int | None = column("The evidence alone. " + RANK, title="rank, evidence alone")
    alone_null: int | None = column(
        "Other sentences alone. " + NULL, title="control, evidence alone", shown=False
    )
    without_competitors: int | None = column(
        "Near-duplicates and other relevant documents are removed. " + RANK,
        title="rank, competitors removed",
    )
    without_competitors_null: int | None = column(
        "As many random documents are removed. " + NULL,
        title="control, competitors removed",
        shown=False,
    )
    evidence: str = column(
        "Source of the evidence: data set, marked (by --evidence) or proposed (by PosLens).",
        shown=False,
    )
    position: float = column(
        "Midpoint of the evidence over the document, 0 to 1.",
        title="evidence position",
        form=".0%",
    )
    best_position: float | None = column("The position that scores highest, 0 to 1.", form=".0%")
    evidence_read: float | None = column(
        "Share of the evidence that the model reads, 0 to 1; null if that is unknown.", form=".0%"
    )
    shared_words: int = column("Number of query words that occur in the evidence.", shown=False)
    query_words: int = column("Number of distinct words of the query.", shown=False)
    relevant_above: int = column("Number of other relevant documents ranked above it.", shown=False)
    duplicates_above: int = column("Number of near-duplicates ranked above it.", shown=False)
    shorter_above: int = column(
        "Number of shorter documents among the first 200 above it.", shown=False
    )


@dataclass(frozen=True)
class CauseRow(ModelRow):
    """The misses with one cause."""

    cause: str = column("not read, position, dilution, no match or competitor.")
    misses: int = column(
        "Number of query-document pairs whose document is not in the top k for this cause."
    )
    share: Estimate | None = column("Share of the model's misses, 0 to 1.", form=PERCENT)
    unspecific: int | None = column(
        "Number of these misses whose control is in the top k, too: for them, the change is no "
        "evidence of the cause. null for no match, and for position, which its control can rule "
        "out.",
        title="control in the top k",
    )
    all_misses: int = column("Number of all misses of the model.", shown=False)
    wanted: int = column(
        "Number of query-document pairs, missed or not.", title="all pairs", shown=False
    )


@dataclass(frozen=True)
class StepRow(ModelRow):
    """One change to a document or to the index."""

    query: str = column("Id of the query, or its text if the data set lacks it.", shown=False)
    document: str = column("Id of the target document.", shown=False)
    change: str = column("What is changed; unchanged for the document as it is.")
    rank: int | None = column("Rank after the change; null if the document is not found.")
    null: int | None = column("Rank after the control.", title="rank after control")
    null_change: str = column("What the control changes.", title="control")


def _rank(rank: int | None) -> int | None:
    return None if rank in (None, NOT_FOUND) else rank


def _ends(step: Step | None) -> tuple[int | None, int | None]:
    return (None, None) if step is None else (_rank(step.rank), _rank(step.null))


def _misses(summary: WhySummary) -> Iterator[MissRow]:
    unknown = limits.unknown(summary.asked.spec)
    for item, explanation in summary.misses:
        yield MissRow(
            summary.name,
            item.query_id or item.query,
            item.document_id,
            _rank(explanation.rank),
            explanation.cause,
            *_ends(explanation.read),
            *_ends(explanation.moved),
            *_ends(explanation.alone),
            *_ends(explanation.without),
            explanation.source,
            explanation.position,
            explanation.best_position,
            None if unknown else explanation.evidence_read,
            len(explanation.shared_words),
            explanation.n_query_words,
            explanation.relevant_above,
            explanation.duplicates_above,
            explanation.shorter_above,
        )


def _causes(summary: WhySummary) -> Iterator[CauseRow]:
    all_misses, wanted = len(summary.misses), len(summary.explained)
    for cause in summary.causes:
        n, share = summary.count(cause), summary.share(cause)
        ruled_out = cause == "position"  # by its control, rather than called unspecific
        unspecific = summary.unspecific(cause) if cause in CHANGES and not ruled_out else None
        yield CauseRow(summary.name, cause, n, share, unspecific, all_misses, wanted)


def _steps(summary: WhySummary) -> Iterator[StepRow]:
    """The ranks of each document, unchanged and after each change."""
    for name, item in summary.items.items():
        explanation = summary.explained[name]
        named = (summary.name, item.query_id or item.query, explanation.document_id)
        yield StepRow(*named, "unchanged", _rank(explanation.rank), None, "")
        for cause, step in explanation.steps.items():
            rank, null = _ends(step)
            words = NULLS[cause] if step.null is not None else ""
            yield StepRow(*named, CHANGES[cause], rank, null, words)


TABLES: Mapping[str, Table[Any]] = {
    "misses": Table(MissRow, _misses, "Misses", on_page=False),
    "causes": Table(CauseRow, _causes, "Causes"),
    "steps": Table(StepRow, _steps, "Ranks after each change", on_page=False),
}
