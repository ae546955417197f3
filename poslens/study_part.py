"""A part of a position passport: one question about a model, answered with numbers, a figure and
their provenance.

A study declares a `StudyPart`, from which `poslens.studies.passport.service` derives its part. A
service without a study declares a `PartQuestion`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_words
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import movable
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance, TextPair
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.figures.figure_base import captioned
from poslens.figures.palettes import Style
from poslens.paired import ItemMeasure
from poslens.rows import estimate_text

MAX_PAIRS = 500
"""Maximum number of pairs that a passport attributes."""

MOVABLE = "pairs that have evidence"
"""What descriptions of selections call pairs whose evidence can be moved."""

ONE_SIDED = "its interval is one-sided: it starts at 0, and only the upper end is estimated"
"""Note of numbers with a one-sided interval."""

CONSTANT = (
    "Agresti-Coull intervals where all documents have 0 or all have 1, and Clopper-Pearson "
    "intervals of differences that are 0 in all documents"
)
"""The intervals that replace a bootstrap's where every resample is the same."""

NO_QUERIES = "This data set has no queries, so there are no pairs to attribute."
NOT_YET = "Not computed yet."


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a part. `key` is its name in files and `name` the one for readers; `note` is what
    to compare it with. `unit` is what the estimate's n counts, in the plural; by default the
    part's. `with_evidence` is whether it covers only the queries with evidence, although the data
    set has others. `measure` has the values whose mean it is, for numbers that `check` compares.
    Its items are (id, fingerprint) of a pair, query or document: the fingerprint changes with
    everything that the value depends on except the model, such as texts, evidence and corpus."""

    key: str
    name: str
    estimate: Estimate
    form: str = "+.3f"
    note: str = ""
    measure: ItemMeasure | None = None
    unit: str = ""
    with_evidence: bool = False

    @property
    def text(self) -> str:
        """The value with its interval, n, what was resampled, and the note."""
        estimate = self.estimate
        resampled = (
            f", {estimate.resampled}: {estimate.n_resampled:,}"
            if estimate.interval
            and estimate.n_resampled
            and not estimate.formula
            and estimate.resampled != self.unit
            else ""
        )
        n = f" ({self.unit}: {estimate.n:,}{resampled})" if estimate.n else ""
        return f"{estimate_text(estimate, self.form)}{n}" + (f"; {self.note}" if self.note else "")


def number(
    key: str, name: str, estimate: Estimate | None, form: str = "+.3f", note: str = "", **more: Any
) -> list[Number]:
    """A list with this `Number`; empty if its estimate is None, that is, not defined."""
    return [] if estimate is None else [Number(key, name, estimate, form, note, **more)]


@dataclass(frozen=True)
class Part:
    """A question with its answer. `finding` is the result in one sentence, and `limits` what it
    does not show. `unit` is what n of its numbers counts, in the plural. Without numbers, `absent`
    is the reason; `jobs` compute what is missing."""

    key: str
    title: str
    limits: str
    unit: str
    finding: str = ""
    numbers: tuple[Number, ...] = ()
    draw: Callable[[Style], go.Figure] | None = None
    provenance: tuple[Provenance, ...] = ()
    absent: str = ""
    jobs: tuple[Job, ...] = ()

    def figure(self, style: Style) -> go.Figure | None:
        """The part's figure; None if it has none, or nothing to draw."""
        try:
            return None if self.draw is None else self.draw(style)
        except UserError:
            return None


@dataclass(frozen=True)
class Scope:
    """A model, and the texts of a data set that its passport covers: `pairs` are attributed,
    `moved` have their evidence moved, `documents` have no query, and `of_each` has one pair of each
    of these documents."""

    compute: Compute
    spec: RetrieverSpec
    data: DataSet
    pairs: tuple[TextPair, ...]
    moved: tuple[TextPair, ...]
    documents: tuple[TextPair, ...]
    of_each: tuple[TextPair, ...]

    @property
    def has_queries(self) -> bool:
        """Whether any pair has a query."""
        return any(pair.query for pair in self.pairs)

    @property
    def name(self) -> str:
        """The scope of jobs over these texts, which distinguishes them from those of other runs."""
        return f"{self.data.name}: passport"

    def selection(self, chosen: Sequence[TextPair], n_all: int, items: str = "pairs") -> str:
        """How `chosen` was selected from `n_all` pairs, or other `items`, as text; empty for all of
        them."""
        return "" if len(chosen) == n_all else spread_words(len(chosen), items)


@dataclass(frozen=True)
class PartAnswer:
    """The answer from stored results: see `Part`. `limits`, if given, replaces the question's."""

    finding: str
    numbers: Sequence[Number]
    draw: Callable[[Style], go.Figure] | None
    provenance: tuple[Provenance, ...]
    limits: str = ""


@dataclass(frozen=True)
class PartQuestion:
    """A part before it is answered. `read` returns the jobs that compute its results, and the
    answer from stored results, None while too few are stored. It computes nothing itself, and
    raises UserError if the question does not fit the model or the data set."""

    key: str
    title: str
    limits: str
    unit: str
    read: Callable[[Scope], tuple[Sequence[Job], PartAnswer | None]]
    needs_queries: bool = False

    def part(self, scope: Scope) -> Part:
        """The part, answered if enough results are stored; otherwise with the reason in `absent`
        and the jobs that compute them."""
        empty = Part(self.key, self.title, self.limits, self.unit)
        try:
            if self.needs_queries and not scope.has_queries:
                raise UserError(NO_QUERIES)
            jobs, answer = self.read(scope)
        except UserError as reason:
            return replace(empty, absent=str(reason))
        if answer is None:
            error = next((job.error for job in jobs if job.error), NOT_YET)
            return replace(empty, absent=error, jobs=tuple(jobs))
        draw, provenance = answer.draw, answer.provenance
        return replace(
            empty,
            limits=answer.limits or self.limits,
            finding=answer.finding,
            numbers=tuple(
                replace(number, unit=number.unit or self.unit) for number in answer.numbers
            ),
            draw=draw and (lambda style: captioned(draw(style), provenance, style)),
            provenance=provenance,
            jobs=tuple(jobs),
        )


# -- parts of studies ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyPart:
    """What a study declares for its part of a passport. Jobs, finding (the verdicts), figure (the
    first) and provenance are those of the study. `numbers` returns those of a summary. `settings`
    are parameters that differ from the study's defaults, and `subject` restricts each of the
    study's subjects to a scope."""

    key: str
    title: str
    limits: str
    unit: str
    numbers: Callable[[Any], Sequence[Number]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    subject: Callable[[Any, Scope], Any] = lambda planned, scope: planned
    needs_queries: bool = False


def moved_pairs(subject: Any, scope: Scope) -> Any:
    """A subject of selected pairs, with those that the scope moves instead.

    Raises:
        UserError: the scope moves fewer than two.
    """
    if len(scope.moved) < 2:
        raise UserError("Fewer than two pairs of this data set have evidence that can be moved.")
    selection = scope.selection(scope.moved, len(movable(scope.data.pairs)[0]), MOVABLE)
    pairs = type(subject.corpus.pairs)(scope.moved)
    return replace(subject, corpus=replace(subject.corpus, pairs=pairs, selection=selection))
