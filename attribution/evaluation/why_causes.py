"""What explains the rank of a missed document: the rank after each change, and the rule that names
the cause (docs/methods.md, section 16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from poslens.attribution.types import Method

Cause = Literal["found", "competitor", "not read", "position", "dilution", "no match"]
CAUSES: tuple[Cause, ...] = ("not read", "position", "dilution", "no match", "competitor")
"""Causes of a miss, in the order of tables and charts."""
Source = Literal["marked", "data set", "proposed"]
"""Who marked the evidence: the user, the data set, or the model, whose evidence is the sentence
that scores highest alone."""

MOST_ABOVE = 200
"""Maximum number of documents above the target document that are compared with it. A larger rank
would need more near-duplicates than that to be explained by them."""
LEAST_OF_ALONE = 0.3
"""Position is the cause only if moving the evidence gains at least this share of what the evidence
alone gains. Chosen on half of the documents of `bench/why.py` and evaluated on the other half
(docs/why.md)."""
MOST_BY_CHANCE = 0.5
"""Position is not the cause if the null of moving the evidence reaches the top k with at least this
share of the gain."""
LEAST_READ = 0.5
"""Position is the cause only if the model reads at least this share of the evidence where it is:
any model that truncates gains from moving evidence to where it is read."""


def why_method(top: int) -> Method:
    """The name under which results are stored and shown."""
    return Method("why", {"top": top, "version": 6})


@dataclass(frozen=True, slots=True)
class Step:
    """A change: the document's rank and score after it, and those after its null, None without a
    null. Scores are None if the document is not found, or if only the index changes."""

    rank: int
    null: int | None = None
    score: float | None = None
    null_score: float | None = None

    def __post_init__(self) -> None:
        if self.rank < 1 or (self.null is not None and self.null < 1):
            raise ValueError("a rank below 1")


@dataclass(frozen=True, slots=True)
class Above:
    """A document that ranks above the target document. `relevant`: it is judged relevant too.
    `duplicate`: it shares half of the shorter one's word 4-grams with the target document, or
    contains the evidence. 4-grams that many documents of the corpus have don't count."""

    document_id: str
    rank: int
    relevant: bool
    duplicate: bool
    n_words: int


@dataclass(frozen=True, slots=True)
class Why:
    """What explains the rank of a target document among `n_documents`.

    `rank` and `score` are those of the document as it is; `rank` is NOT_FOUND if it shares nothing
    with the query. The steps are None where a change is impossible: `read` if the model reads the
    evidence anyway, `moved` if the document is one sentence, `alone` if it is nothing but its
    evidence, `without` if no competitor ranks above it. Characters of the evidence are `start` to
    `end`; `position` is its midpoint and `best_position` that of the position that scores highest,
    in [0, 1]; `evidence_read` the share of it that the model reads. `shared_words` are the words of
    the query that the evidence has. `above` are the first documents, and the counts are over the
    first MOST_ABOVE. All zero, and the steps None, for a document in the top k.
    """

    document_id: str
    top: int
    n_documents: int
    rank: int
    score: float | None
    source: Source
    start: int
    end: int
    position: float
    evidence_read: float
    read: Step | None = None
    moved: Step | None = None
    alone: Step | None = None
    without: Step | None = None
    best_position: float | None = None
    n_words: int = 0
    n_query_words: int = 0
    shared_words: tuple[str, ...] = ()
    above: tuple[Above, ...] = ()
    relevant_above: int = 0
    duplicates_above: int = 0
    shorter_above: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end or min(self.top, self.rank) < 1:
            raise ValueError("no evidence, or no rank")

    @property
    def steps(self) -> dict[Cause, Step]:
        """The steps that were possible, by the cause that each tests, in the order of testing."""
        by_cause: dict[Cause, Step | None] = {
            "competitor": self.without,
            "not read": self.read,
            "position": self.moved,
            "dilution": self.alone,
        }
        return {cause: step for cause, step in by_cause.items() if step is not None}

    @property
    def cause(self) -> Cause:
        """The cause tested by the first change that brings the document into the top k; *not read*
        if that change moves evidence which the model reads only after the move. Position is
        ruled out if moving another sentence also does so and gains at least half as much, because
        then any new order does; or if the evidence alone also does so and gains far more, because
        then the rest of the document keeps it down. Other causes are not ruled out by their nulls:
        in a document on one topic, another window or sentence can match too, but it is unread or
        diluted just like the evidence."""
        return self.named()

    def named(
        self, least_of_alone: float = LEAST_OF_ALONE, most_by_chance: float = MOST_BY_CHANCE
    ) -> Cause:
        """The cause with other thresholds for ruling out position."""
        if self.rank <= self.top:
            return "found"
        decisive = self._decisive(least_of_alone, most_by_chance)
        if decisive is None:
            return "no match"
        unread = self.read is not None and self.evidence_read < LEAST_READ
        return "not read" if decisive == "position" and unread else decisive

    @property
    def decisive(self) -> Cause | None:
        """The key in `steps` of the change that names the cause; None for no match and documents in
        the top k."""
        return None if self.rank <= self.top else self._decisive(LEAST_OF_ALONE, MOST_BY_CHANCE)

    def _decisive(self, least_of_alone: float, most_by_chance: float) -> Cause | None:
        for cause, step in self.steps.items():
            if step.rank > self.top:
                continue
            if cause == "position" and (
                self._by_chance(step, most_by_chance) or self._diluted(step, least_of_alone)
            ):
                continue
            return cause
        return None

    def _diluted(self, step: Step, least_of_alone: float) -> bool:
        """Whether the evidence alone reaches the top k too, and this step gains less than this
        share of its gain in score."""
        alone = self.alone
        if alone is None or alone.rank > self.top:
            return False
        if self.score is None or step.score is None or alone.score is None:
            return False
        return step.score - self.score < least_of_alone * (alone.score - self.score)

    def _by_chance(self, step: Step, most_by_chance: float) -> bool:
        """Whether the null of a step also reaches the top k, with at least this share of its
        gain."""
        if step.null is None or step.null > self.top:
            return False
        if self.score is None or step.score is None or step.null_score is None:
            return True
        return step.null_score - self.score >= most_by_chance * (step.score - self.score)
