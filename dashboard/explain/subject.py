"""The data of the pair view: results, their data sets, means and null controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poslens.attribution.curves.published import PublishedCurves
from poslens.attribution.datasets import DataSet
from poslens.attribution.interventions.null_controls import Control, null_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, Method, Provenance
from poslens.compute.compute import Explained
from poslens.compute.provenance import with_control
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.sending import agreed
from poslens.studies.curves.null_controls import control_job, controls
from poslens.studies.curves.words import MIN_PAIRS
from poslens.studies.explain import service
from poslens.studies.explain.service import Average, Difference

BOTH, PAIR, DATA_SET = "both", "this pair", "data set"
"""Curves that charts show."""


@dataclass
class ExplainedColumn:
    """One result, its label, and the data set of its pair (None for typed texts). `average` is the
    model's mean over that data set, and `control` the attribution of the pair's null control by the
    model; each is None if there is none."""

    result: Explained
    label: str
    data: DataSet | None
    average: Average | None = None
    control: Attribution | None = None


class ExplainedSubject:
    """Results of one query and one method, shown in one column each. `kind` is the null control
    that is subtracted from curves; `published` are curves that are drawn with the data set's
    means."""

    def __init__(
        self,
        results: Sequence[Explained],
        method: Method,
        kind: Control | None,
        published: Sequence[PublishedCurves] = (),
    ) -> None:
        self.results, self.method, self.kind = list(results), method, kind
        self.published = tuple(published)
        self.labels = panels.labels(self.results)
        self.columns = [
            ExplainedColumn(result, label, choices.data_of(result.pair))
            for result, label in zip(self.results, self.labels, strict=True)
        ]

    @property
    def specs(self) -> list[RetrieverSpec]:
        """The model of each result."""
        return [result.model.spec for result in self.results]

    @property
    def of_data_set(self) -> bool:
        """Whether any of the pairs belongs to a data set, so that a mean can be shown."""
        return any(column.data for column in self.columns)

    def read(self) -> None:
        """Read the columns' averages and controls; a control is computed if it is not stored."""
        for column in self.columns:
            column.average = column.control = None
            if (data := column.data) is None:
                continue
            with panels.guarded():
                column.average = service.average(
                    service_for(data.name), column.result.model.spec, self.method, data, self.kind
                )
            if self.kind is not None:
                with panels.guarded():
                    column.control = self._control(column.result, data, self.kind)

    def _control(self, result: Explained, data: DataSet, kind: Control) -> Attribution | None:
        for pair in controls(kind, [result.pair], data.pairs):
            method = null_method(kind, self.method)
            compute, spec = service_for(data.name), result.model.spec
            if not agreed(compute, spec, method, pair, "this pair's null control"):
                return None
            return wait(compute.ask(pair, spec, method)).attribution
        return None

    def provenance(self, *, minus_control: bool = False) -> list[Provenance]:
        """The provenance of each result, or that of its curve minus its control's."""
        return [
            with_control(column.result.provenance(), self.kind)
            if minus_control and self.kind is not None and column.control is not None
            else column.result.provenance()
            for column in self.columns
        ]

    def mean_provenance(self) -> list[Provenance]:
        """The provenance of the means that are drawn."""
        averages = [column.average for column in self.columns if column.average is not None]
        return [average.provenance for average in averages if average.provenance]

    def jobs(self) -> list[Job]:
        """The jobs that complete the data sets' mean curves: for each model, and for its null
        control if one is selected. None for data sets too small for a mean."""
        return [job for column in self.columns for job in self._jobs_of(column)]

    def incomplete_jobs(self) -> list[Job]:
        """The jobs that are active or have missing results."""
        incomplete = []
        for column in self.columns:
            for job, is_control in zip(self._jobs_of(column), (False, True), strict=False):
                if is_control:
                    missing = job.n_done() < job.total
                else:  # the average tells, without reading the store
                    missing = column.average is not None and not column.average.complete
                if missing or job.active:
                    incomplete.append(job)
        return incomplete

    def _jobs_of(self, column: ExplainedColumn) -> list[Job]:
        data = column.data
        if data is None or len(data.pairs) < MIN_PAIRS:
            return []
        compute, spec = service_for(data.name), column.result.model.spec
        scope = f"{data.name}: "
        jobs = [compute.attribution_job(spec, self.method, data.pairs, scope)]
        if self.kind is not None:
            nulls = controls(self.kind, data.pairs, data.pairs)
            jobs.append(control_job(compute, spec, self.method, self.kind, nulls, scope))
        return jobs

    def gap(self, first: int, second: int) -> Difference | None:
        """The mean difference of two of the models over their data set; None if their pairs belong
        to different ones, or too few results are stored."""
        column, other = self.columns[first], self.columns[second]
        data = column.data
        if data is None or data is not other.data:
            return None
        a, b = column.result.model.spec, other.result.model.spec
        return service.difference(service_for(data.name), a, b, self.method, data)
