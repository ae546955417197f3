"""Interventions on the items of a data set: pairs, or documents without a query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import (
    Comparison,
    adjusted,
)
from poslens.attribution.interventions.segments import (
    documents_of,
    require_vector,
)
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.compute.runs import Job
from poslens.paired import ItemMeasure, MeasuredModel
from poslens.parameters import Settings
from poslens.studies.cause import service
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.curves.words import too_few
from poslens.studies.selections import number_of, selected
from poslens.study import Study


@dataclass(frozen=True)
class CauseItems:
    """The pairs of a data set, or its documents as pairs without a query, and the interventions
    on them. `selection` describes which items were selected, and `left_out` says why others can't
    be used. `of_pairs` is whether the items have queries."""

    dataset: str
    interventions: tuple[Method, ...]
    items: Sequence[TextPair]
    selection: str
    left_out: str = ""
    of_pairs: bool = True


@dataclass(frozen=True)
class CauseSubject:
    """One intervention for one model."""

    spec: RetrieverSpec
    method: Method
    chosen: CauseItems

    @property
    def label(self) -> str:
        """What is moved, removed or compared."""
        if self.method.name != "segments":
            return self.method.name
        return f"segments in {'random' if 'order' in self.method.params else 'original'} order"


class MeasuredEffect(Protocol):
    """A mean effect: `measure` has a number for each item, and `test` compares their mean with
    0."""

    @property
    def model(self) -> ModelIdentity: ...
    @property
    def measure(self) -> ItemMeasure: ...
    @property
    def test(self) -> Comparison | None: ...


Effect = TypeVar("Effect", bound=MeasuredEffect)


class OverItems(Study[CauseItems, CauseSubject, Effect], Generic[Effect]):
    """Base class of studies of interventions: one subject and one mean effect per intervention."""

    unit = "result"
    compared = ("MiniLM-primacy", "MiniLM-recency")

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: CauseItems, settings: Settings
    ) -> list[CauseSubject]:
        """One subject for each intervention.

        Raises:
            UserError: documents are compared, and the model has no vector per text.
        """
        if not corpus.of_pairs:
            require_vector(spec)
        return [CauseSubject(spec, method, corpus) for method in corpus.interventions]

    def job(self, compute: Compute, subject: CauseSubject) -> Job:
        """A job that applies the intervention to the items; progress counts items."""
        return service.job(
            compute, subject.spec, subject.method, subject.chosen.items, scope_of(subject.chosen)
        )

    @abstractmethod
    def mean_effect(self, compute: Compute, subject: CauseSubject) -> Effect:
        """The mean over the items with stored results, of which there is at least one.

        Raises:
            UserError: none of them has a curve.
        """

    def summarize(
        self, compute: Compute, subject: CauseSubject, earlier: Sequence[Effect] = ()
    ) -> Effect | None:
        """The mean effect; None while a result is missing.

        Raises:
            UserError: every item failed, or none has a curve.
        """
        items, spec, method = subject.chosen.items, subject.spec, subject.method
        stored = service.stored(compute, spec, method, items)
        if len(stored.results) + len(stored.failed) < len(items):
            return None
        service.require_results(spec, method, stored)
        return self.mean_effect(compute, subject)

    def so_far(
        self, compute: Compute, subject: CauseSubject, earlier: Sequence[Effect] = ()
    ) -> Effect | None:
        """The mean effect once there are enough results."""
        items, spec = subject.chosen.items, subject.spec
        stored = service.stored(compute, spec, subject.method, items)
        if too_few(spec.name, len(stored.results), len(items) - len(stored.failed)):
            return None
        return self.mean_effect(compute, subject) if stored.results else None

    def together(self, summaries: Sequence[Effect]) -> list[Effect]:
        tests = adjusted([summary.test for summary in summaries])
        return [
            replace(summary, test=test)  # type: ignore[type-var]  # a dataclass
            for summary, test in zip(summaries, tests, strict=True)
        ]

    def measured(self, summary: Effect) -> MeasuredModel:
        """The number of each item."""
        return MeasuredModel(summary.model.spec.name, [summary.measure])

    def notes(self, data: DataSet, corpus: CauseItems) -> list[str]:
        return [corpus.left_out] if corpus.left_out else []


def scope_of(chosen: CauseItems) -> str:
    """What identifies these items in runs."""
    return f"{chosen.dataset}: {chosen.selection}"


def documents_for(data: DataSet, n: int, *interventions: Method) -> CauseItems:
    """`n` documents, spread evenly over the data set; all if `n` is 0.

    Raises:
        UserError: the data set has none.
    """
    documents = documents_of(data.pairs)
    if not documents:
        raise UserError(f"{data.title} has no documents: select another data set.")
    chosen, words = selected(documents, n, "documents")
    return CauseItems(data.name, interventions, chosen, words, of_pairs=False)


DOCUMENTS = number_of("documents", DEFAULT_PAIRS)
