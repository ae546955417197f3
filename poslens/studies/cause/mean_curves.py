"""Mean effects of interventions whose results are curves over positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from poslens.attribution.evaluation.comparison import (
    Comparison,
    compared,
    p_in_words,
)
from poslens.attribution.types import Array, Provenance
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.paired import ItemMeasure
from poslens.rows import Table, column
from poslens.studies.cause import service
from poslens.studies.cause.over_items import CauseSubject, OverItems
from poslens.studies.cause.service import DataSetCause
from poslens.studies.cause.tables import cause_measure


@dataclass(frozen=True)
class CauseSummary:
    """The mean effect of one intervention. `measure` has the last-minus-first difference of each
    item, and `test` compares their mean with 0; scores are in standard deviations of the model's
    scores, because models have different scales."""

    model: ModelIdentity
    asked: CauseSubject
    cause: DataSetCause
    measure: ItemMeasure
    test: Comparison | None


@dataclass(frozen=True)
class CurvePointRow:
    """The mean effect at one of 100 positions."""

    model: str = column("Name of the model.")
    intervention: str = column("The intervention.")
    position: float = column(
        "Position, 0 to 1, in the part of the document that the model reads: in tokens, or in "
        "characters for relocation."
    )
    mean: float | None = column(
        "Mean value. Relocation: score minus the pair's mean over positions; ablation: score lost "
        "without this part; segments and thirds: cosine with the whole text's vector."
    )
    mean_low: float | None = column("Lower end of the mean's 95% interval; null if there is none.")
    mean_high: float | None = column("Upper end of the mean's 95% interval; null if there is none.")
    n: int = column("Number of averaged pairs or documents.")


def _points(summary: CauseSummary) -> Iterator[CurvePointRow]:
    curve = summary.cause.summary.curve

    def at(series: Array | None, bin_: int) -> float | None:
        return None if series is None or np.isnan(series[bin_]) else float(series[bin_])

    for bin_, position in enumerate(curve.positions):
        yield CurvePointRow(
            curve.model,
            summary.asked.label,
            float(position),
            at(curve.mean, bin_),
            at(curve.ci_low, bin_),
            at(curve.ci_high, bin_),
            curve.n,
        )


POINTS = Table(CurvePointRow, _points, "Mean curves", on_page=False)


class CurveStudy(OverItems[CauseSummary]):
    """Base class of studies whose results are curves over positions."""

    def mean_effect(self, compute: Compute, subject: CauseSubject) -> CauseSummary:
        """The mean curve and its last-minus-first difference."""
        chosen, spec, method = subject.chosen, subject.spec, subject.method
        cause = service.data_set_cause(
            compute, spec, method, chosen.items, chosen.dataset, chosen.selection
        )
        measure = cause_measure(compute, spec, method, chosen.items)

        def test() -> Comparison | None:
            rows = np.array([*measure.rows.values()]).reshape(-1, 1)
            documents = [measure.documents[item] for item in measure.rows]
            return compared(rows, documents, measure.margin) if len(rows) else None

        return CauseSummary(cause.model, subject, cause, measure, _tests.get(measure.digest, test))

    def provenance(self, summary: CauseSummary) -> Provenance:
        return summary.cause.provenance()


_tests: LRUCache[Comparison | None] = LRUCache(64)

NOTES = "Up to three notes on single results, such as a document with fewer than 10 segments."


def notes_of(summary: CauseSummary) -> str:
    """The first notes on a summary's results, and how many more there are."""
    notes = summary.cause.notes
    more = [f"and {len(notes) - 3} more"] if len(notes) > 3 else []
    return "; ".join([*notes[:3], *more])


def basis(test: Comparison) -> str:
    """What a verdict is based on: p, or the margin."""
    return p_in_words(test) if test.verdict in ("higher", "lower") else test.clause
