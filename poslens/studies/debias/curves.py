"""Relocation and saliency curves of a model before and after calibration."""

from __future__ import annotations

from dataclasses import dataclass

from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.commands.answers import interval
from poslens.compute.compute import Compute, DataSetCurve
from poslens.compute.runs import Job
from poslens.studies.cause import service as interventions
from poslens.studies.cause.service import DataSetCause
from poslens.studies.debias.answers import CurveEntry
from poslens.studies.debias.debias_job import SALIENCY
from poslens.studies.debias.service import DebiasResult, Point


@dataclass(frozen=True)
class CurveChoice:
    """The pairs whose curves are compared, and the models before and after calibration."""

    compute: Compute
    specs: tuple[RetrieverSpec, ...]
    pairs: tuple[TextPair, ...]
    dataset: str
    words: str

    def jobs(self) -> list[Job]:
        """The jobs for relocation and saliency of each model."""
        scope = f"{self.dataset}: debias, {self.words}"
        jobs = []
        for spec in self.specs:
            jobs.append(
                interventions.job(self.compute, spec, relocation_method(), self.pairs, scope)
            )
            jobs.append(self.compute.attribution_job(spec, SALIENCY, self.pairs, scope))
        return jobs

    def relocations(self) -> list[DataSetCause]:
        """The mean score by position of the evidence for each model with stored results."""
        what = relocation_method()
        return [
            interventions.data_set_cause(
                self.compute, spec, what, self.pairs, self.dataset, self.words
            )
            for spec in self.specs
            if interventions.stored(self.compute, spec, what, self.pairs).results
        ]

    def saliencies(self) -> list[DataSetCurve]:
        """The mean saliency curve of each model with stored results."""
        curves = [
            self.compute.curve(spec, SALIENCY, self.pairs, self.dataset, self.words)
            for spec in self.specs
            if len(
                self.compute.store.missing(self.compute.identify(spec).key, SALIENCY, self.pairs)
            )
            < len(self.pairs)
        ]
        return curves


def curve_choice(
    compute: Compute, result: DebiasResult, point: Point, data: DataSet, n: int
) -> CurveChoice:
    """At most `n` pairs whose evidence can be moved, spread evenly over the data set.

    Raises:
        UserError: there are fewer than two.
    """
    usable, _ = movable(data.pairs)
    if len(usable) < 2:
        raise UserError(
            "Fewer than two pairs of this data set have an evidence span that could be moved, so "
            "there are no curves before and after."
        )
    n = min(n, len(usable))
    chosen = tuple(spread_evenly(usable, n))
    specs = tuple(dict.fromkeys((result.plain.spec, point.spec)))
    return CurveChoice(compute, specs, chosen, data.name, f"{n} pairs spread evenly")


def curves_entry(choice: CurveChoice) -> list[CurveEntry]:
    """The curves before and after as in JSON: relocation with its last-minus-first difference,
    saliency with its primacy-recency index."""
    entries: list[CurveEntry] = []
    for relocation in choice.relocations():
        curve = relocation.summary.curve
        entries.append(
            {
                "curve": "relocation",
                "model": curve.model,
                "n": curve.n,
                "documents": curve.n_documents,
                "last_minus_first": interval(relocation.last_minus_first),
                "mean": curve.mean.tolist(),
            }
        )
    for saliency in choice.saliencies():
        curve = saliency.summary.curve
        entries.append(
            {
                "curve": "saliency",
                "model": curve.model,
                "n": curve.n,
                "documents": curve.n_documents,
                "index": interval(saliency.summary.primacy_recency_index),
                "mean": curve.mean.tolist(),
            }
        )
    return entries
