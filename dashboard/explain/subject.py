"""The data of the pair view: results, their data sets, means and null controls."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.curves.published import PublishedCurves
from poslens.attribution.datasets import DataSet
from poslens.attribution.interventions.null_controls import Control, null_method
from poslens.attribution.types import Attribution, Method, Provenance
from poslens.compute.compute import Explained
from poslens.compute.provenance import with_control
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, null_controls, panels
from poslens.dashboard.widgets.sending import agreed
from poslens.studies.cause import service as interventions
from poslens.studies.explain import service
from poslens.studies.explain.service import Average, Difference

BOTH, PAIR, DATA_SET = "both", "this pair", "data set"
"""Curves that charts show."""


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
        self.data = [choices.data_of(result.pair) for result in self.results]

    @property
    def of_data_set(self) -> bool:
        """Whether any of the pairs belongs to a data set, so that a mean can be shown."""
        return any(self.data)

    def provenance(self, controls: Sequence[Attribution | None] = ()) -> list[Provenance]:
        """The provenance of each result; with `controls`, that of its curve minus its control's."""
        provenance = [result.provenance() for result in self.results]
        for number, control in enumerate(controls):
            if self.kind is not None and control is not None:
                provenance[number] = with_control(provenance[number], self.kind)
        return provenance

    def jobs(self) -> list[Job]:
        """The jobs that complete the data sets' mean curves: for each model, and for its null
        control if one is selected."""
        jobs = []
        for result, data in zip(self.results, self.data, strict=True):
            if data is None:
                continue
            compute, spec = service_for(data.name), result.model.spec
            scope = f"{data.name}: "
            jobs.append(compute.attribution_job(spec, self.method, data.pairs, scope))
            if self.kind is not None:
                nulls = service.controls(self.kind, data)
                jobs.append(null_controls.job(compute, spec, self.method, self.kind, nulls, scope))
        return jobs

    def averages(self) -> list[Average | None]:
        """Each model's mean over the data set of its pair; None for texts outside any data set."""
        averages: list[Average | None] = []
        for result, data in zip(self.results, self.data, strict=True):
            average = None
            if data is not None:
                with panels.guarded():
                    average = service.average(
                        service_for(data.name), result.model.spec, self.method, data, self.kind
                    )
            averages.append(average)
        return averages

    def controls(self) -> list[Attribution | None]:
        """The attribution of each pair's null control by its model; None if no control is selected
        or it could not be computed."""
        attributions: list[Attribution | None] = []
        for result, data in zip(self.results, self.data, strict=True):
            control = None
            if data is not None and self.kind is not None:
                with panels.guarded():
                    control = self._control(result, data, self.kind)
            attributions.append(control)
        return attributions

    def _control(self, result: Explained, data: DataSet, kind: Control) -> Attribution | None:
        for pair in interventions.controls(kind, [result.pair], data.pairs):
            method = null_method(kind, self.method)
            compute, spec = service_for(data.name), result.model.spec
            if not agreed(compute, spec, method, pair, "this pair's null control"):
                return None
            return wait(compute.ask(pair, spec, method)).attribution
        return None

    def incomplete(self, job: Job, averages: Sequence[Average | None], number: int) -> bool:
        """Whether the `number`-th job of `jobs` has missing results. Only for controls the store is
        read; for others the averages tell."""
        jobs_per_model = 1 if self.kind is None else 2
        of_data_sets = [
            average for average, data in zip(averages, self.data, strict=True) if data is not None
        ]
        model, is_control = divmod(number, jobs_per_model)
        if is_control:
            return job.n_done() < job.total
        average = of_data_sets[model]
        return average is not None and not average.complete

    def gap(self, first: int, second: int) -> Difference | None:
        """The mean difference of two of the models over their data set; None if their pairs belong
        to different ones, or too few results are stored."""
        data = self.data[first]
        if data is None or data is not self.data[second]:
            return None
        a, b = (self.results[i].model.spec for i in (first, second))
        return service.difference(service_for(data.name), a, b, self.method, data)


def sources(averages: Sequence[Average | None]) -> list[Provenance]:
    """The provenance of the means that are drawn."""
    return [
        average.provenance for average in averages if average is not None and average.provenance
    ]
