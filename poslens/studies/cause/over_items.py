"""Interventions on the items of a data set, pairs or documents without a query, and their mean
effects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.comparison_words import p_in_words
from poslens.attribution.interventions.segments import documents_of, require_vector
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Method, Provenance
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.paired import ItemMeasure, MeasuredModel
from poslens.parameters import Settings
from poslens.rows import ModelRow, Table, column
from poslens.studies.cause import service
from poslens.studies.cause.service import DataSetCause
from poslens.studies.cause.tables import cause_measure
from poslens.studies.curves.words import too_few
from poslens.studies.selections import OfPairs, SelectedPairs, number_of, selected
from poslens.study import AskedMethod, ModelSummary


@dataclass(frozen=True)
class CauseItems(SelectedPairs):
    """The items, and the interventions on them. `left_out` says why other items can't be used.
    `of_pairs` is whether the items have queries. `names` are what to call items, by id, if their
    ids say nothing."""

    interventions: tuple[Method, ...]
    left_out: str = ""
    of_pairs: bool = True
    names: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


CauseSubject: TypeAlias = AskedMethod[CauseItems]
"""One intervention for one model."""


def label_of(intervention: Method) -> str:
    """What is moved, removed or compared."""
    if intervention.name != "segments":
        return intervention.name
    return f"segments in {'random' if 'order' in intervention.params else 'original'} order"


@dataclass(frozen=True)
class MeanEffect(ModelSummary[CauseSubject]):
    """The mean effect of one intervention. `measure` has a number for each item, and `test`
    compares their mean with 0."""

    measure: ItemMeasure
    test: Comparison | None


Effect = TypeVar("Effect", bound=MeanEffect)


class OverItems(OfPairs[CauseItems, CauseSubject, Effect], Generic[Effect]):
    """Base class of studies of interventions: one subject and one mean effect per intervention."""

    unit = "result"
    compared = ("MiniLM-primacy", "MiniLM-recency")
    tests = ("test",)

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: CauseItems, settings: Settings
    ) -> list[CauseSubject]:
        """One subject for each intervention.

        Raises:
            UserError: documents are compared, and the model has no vector per text.
        """
        if not corpus.of_pairs:
            require_vector(spec)
        return [AskedMethod(spec, corpus, settings, method) for method in corpus.interventions]

    def job(self, compute: Compute, subject: CauseSubject) -> Job:
        """A job that applies the intervention to the items; progress counts items."""
        spec, method, corpus = subject.spec, subject.method, subject.corpus
        job = service.job(compute, spec, method, corpus.pairs, corpus.scope, corpus.names)
        return replace(job, label=f"{spec.name}, {label_of(method)}")

    @abstractmethod
    def mean_effect(self, compute: Compute, subject: CauseSubject) -> Effect:
        """The mean over the items with stored results, of which there is at least one.

        Raises:
            UserError: none of them has a curve.
        """

    def summarize(self, compute: Compute, subject: CauseSubject) -> Effect | None:
        """The mean effect; None while a result is missing.

        Raises:
            UserError: every item failed, or none has a curve.
        """
        items, spec, method = subject.corpus.pairs, subject.spec, subject.method
        stored = service.stored(compute, spec, method, items)
        if len(stored.results) + len(stored.failed) < len(items):
            return None
        service.require_results(spec, method, stored)
        return self.mean_effect(compute, subject)

    def so_far(self, compute: Compute, subject: CauseSubject) -> Effect | None:
        """The mean effect once there are enough results."""
        items, spec = subject.corpus.pairs, subject.spec
        stored = service.stored(compute, spec, subject.method, items)
        if too_few(spec.name, len(stored.results), len(items) - len(stored.failed)):
            return None
        return self.mean_effect(compute, subject) if stored.results else None

    def measured(self, summary: Effect) -> MeasuredModel:
        names, id_of = summary.asked.corpus.names, summary.measure.label
        measure = replace(summary.measure, label=lambda item: names.get(id_of(item), id_of(item)))
        return MeasuredModel(summary.name, [measure])

    def notes(self, data: DataSet, corpus: CauseItems) -> list[str]:
        return [corpus.left_out] if corpus.left_out else []


def documents_for(data: DataSet, n: int, *interventions: Method) -> CauseItems:
    """`n` documents, spread evenly over the data set; all if `n` is 0.

    Raises:
        UserError: the data set has none.
    """
    documents = documents_of(data.pairs)
    if not documents:
        raise UserError(f"{data.title} has no documents: select another data set.")
    chosen = selected(documents, n, "documents")
    names = service.document_names(data)
    return CauseItems(data.name, *chosen, interventions, of_pairs=False, names=names)


DOCUMENTS = number_of("documents")


# -- interventions whose results are curves over positions -----------------------------------------


@dataclass(frozen=True)
class CauseSummary(MeanEffect):
    """The mean curve of one intervention. `measure` has the last-minus-first difference of each
    item; scores are in standard deviations of the model's scores, because models have different
    scales. `unscaled` has the same differences in units of the score."""

    cause: DataSetCause
    unscaled: ItemMeasure


@dataclass(frozen=True)
class CurvePointRow(ModelRow):
    """The mean effect at one of 100 positions."""

    intervention: str = column("The intervention.")
    position: float = column(
        "Position, 0 to 1, in the part of the document that the model reads: in tokens, or in "
        "characters for relocation."
    )
    mean: Estimate | None = column(
        "Mean value. Relocation: score minus the pair's mean over positions; ablation: score lost "
        "without this part; segments and thirds: cosine with the whole text's vector."
    )
    n: int = column("Number of averaged pairs or documents.")


def _points(summary: CauseSummary) -> Iterator[CurvePointRow]:
    curve = summary.cause.summary.curve

    def at(series: Array | None, bin_: int) -> float | None:
        return None if series is None or np.isnan(series[bin_]) else float(series[bin_])

    for bin_, position in enumerate(curve.positions):
        mean, ends = at(curve.mean, bin_), (at(curve.ci_low, bin_), at(curve.ci_high, bin_))
        yield CurvePointRow(
            curve.model,
            label_of(summary.asked.method),
            float(position),
            None if mean is None else Estimate(mean, *ends, curve.n, curve.n_documents),
            curve.n,
        )


POINTS = Table(CurvePointRow, _points, "Mean curves", on_page=False)


class CurveStudy(OverItems[CauseSummary]):
    """Base class of studies whose results are curves over positions."""

    def mean_effect(self, compute: Compute, subject: CauseSubject) -> CauseSummary:
        """The mean curve and its last-minus-first difference."""
        corpus, spec, method = subject.corpus, subject.spec, subject.method
        cause = service.data_set_cause(
            compute, spec, method, corpus.pairs, corpus.dataset, corpus.selection
        )
        measure = cause_measure(compute, spec, method, corpus.pairs)
        unscaled = cause_measure(compute, spec, method, corpus.pairs, scaled=False)
        return CauseSummary(cause.model, subject, measure, measure.test(), cause, unscaled)

    def provenance(self, summary: CauseSummary) -> Provenance:
        return summary.cause.provenance()


NOTES = (
    "The three most frequent notes on single results, such as a document with fewer than 10 "
    "segments, each with the number of results that it is true of."
)


def notes_of(summary: CauseSummary) -> str:
    """The first notes on a summary's results, and how many more there are."""
    notes = summary.cause.notes
    more = [f"and {len(notes) - 3} more"] if len(notes) > 3 else []
    return "; ".join([*notes[:3], *more])


SIDES = {"lower": "beginning", "higher": "end"}
"""The side of a text that has more, by the verdict of its last minus its first third."""


def basis(test: Comparison) -> str:
    """What a verdict is based on: p, or the margin."""
    return p_in_words(test) if test.verdict in ("higher", "lower") else test.clause
