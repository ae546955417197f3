"""Mean curves of several models as one result, for the command `curve` and `poslens.curve`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.published import PublishedCurves
from poslens.attribution.curves.text_axis import is_over_text
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Array, Method, PositionCurve, Provenance, TextPair
from poslens.base_result import FIGURE_OF, Result, chosen, require_model
from poslens.compute.compute import Compute, DataSetCurve
from poslens.compute.provenance import of_published
from poslens.compute.runs import Job
from poslens.export.files import curve_frame
from poslens.failures import FAILURE_TABLE, FAILURES, FailureRow, failure_rows
from poslens.figures.curves import mean_curves
from poslens.figures.palettes import Style
from poslens.paired import (
    DIFFERENCES,
    ITEM_TABLE,
    ITEMS,
    DifferenceRow,
    curve_differences,
    difference_sentences,
    measured_curves,
)
from poslens.rows import frame_of
from poslens.studies.curves.answers import SUMMARY
from poslens.studies.curves.words import index_sentence
from poslens.studies.published import curves_frame, means, summary_rows

_TITLES = {
    "summary": "Mean curves, center of mass and primacy-recency index",
    DIFFERENCES: "Mean curves, paired differences",
    ITEMS: "Primacy-recency index by pair",
}


@dataclass(frozen=True, repr=False, eq=False)
class Curves(Result, Mapping[str, "Curves"]):
    """Mean curves over a data set, by model name. Tables and the figure show all of them, the
    attributes are those of the first. `pairs` are those that were selected, `failures` the ones
    without a result, and `published` curves are shown in addition."""

    averages: Sequence[DataSetCurve]
    pairs: Sequence[TextPair]
    failures: Sequence[FailureRow] = ()
    published: Sequence[PublishedCurves] = ()

    def __getitem__(self, model: str) -> Curves:
        """One model's curve.

        Raises:
            NoSuchModel: it has no such model.
        """
        require_model(model, self, "curve")
        averages = [average for average in self.averages if average.model.spec.name == model]
        failures = [row for row in self.failures if row.model == model]
        return replace(self, averages=averages, failures=failures, published=())

    def __iter__(self) -> Iterator[str]:
        return (average.model.spec.name for average in self.averages)

    def __len__(self) -> int:
        return len(self.averages)

    @property
    def summary(self) -> PositionCurve:
        """The first model's mean curve with its interval and counts."""
        return self.averages[0].summary.curve

    @property
    def curve(self) -> Array:
        """The first model's mean at 100 relative positions, float32 [100]."""
        return self.summary.mean

    @property
    def primacy_recency_index(self) -> Estimate | None:
        """The first model's index, -1 (all in the first third) to 1; None if it is undefined."""
        return self.averages[0].summary.primacy_recency_index

    @property
    def center_of_mass(self) -> Estimate | None:
        """The first model's center of mass, 0 to 1; None if it is undefined."""
        return self.averages[0].summary.center_of_mass

    @cached_property
    def differences(self) -> list[DifferenceRow]:
        """The paired differences of the models' indices."""
        return curve_differences(self.averages, self.pairs)

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each model's index, then one for each pair of models. Curves over the
        whole text have no index, which is relative to the tokens that each model read."""
        indices = (
            index_sentence(average.model.spec.name, average.summary.primacy_recency_index)
            for average in self.averages
            if not is_over_text(average.summary.curve.method)
        )
        return [*indices, *difference_sentences(self.differences)]

    @property
    def provenance(self) -> list[Provenance]:
        """See `Result`."""
        return self.sources(None)

    def sources(self, table: str | None) -> list[Provenance]:
        computed = [average.provenance() for average in self.averages]
        published = [of_published(each) for each in self.published]
        if table == "published":
            return published
        return computed if table not in (None, "summary") else [*computed, *published]

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """The table `curves`, 100 rows for each model: position, mean, standard deviation and
        interval; `summary`, one row for each model: center of mass and primacy-recency index with
        their intervals; `differences`, the index of each pair of models, paired; `items`, the
        index of each pair; `published`, if there are published curves; or `failures`.

        Raises:
            UserError: there is no such table.
        """
        tables = self._tables | {FAILURES: lambda: FAILURE_TABLE.frame(self.failures)}
        frame = chosen(tables, table, "curve")()
        if table in _TITLES:
            frame.attrs["title"] = _TITLES[table]
        return frame

    @property
    def _tables(self) -> dict[str, Callable[[], pd.DataFrame]]:
        """The tables of numbers."""
        summaries = [average.summary for average in self.averages]
        tables: dict[str, Callable[[], pd.DataFrame]] = {
            "curves": lambda: curve_frame([summary.curve for summary in summaries]),
            "summary": lambda: SUMMARY.frame(list(summary_rows(summaries, self.published))),
            DIFFERENCES: lambda: frame_of(DifferenceRow, self.differences),
            ITEMS: lambda: ITEM_TABLE.frame(measured_curves(self.averages, self.pairs)),
        }
        if self.published:
            tables["published"] = lambda: curves_frame(self.published)
        return tables

    def _drawn(self, table: str | None, style: Style) -> go.Figure:
        """The mean curves with their bands, one line for each model, whatever the table."""
        chosen(self._tables, table, "curve", FIGURE_OF)
        curves = [average.summary.curve for average in self.averages]
        return mean_curves(
            curves,
            style,
            published=means(self.published, band=not curves),
            y_title=None if curves else "Normalized gradient L2 norm",  # as in the PosIR paper
            provenance=self.provenance,
        )

    def __repr__(self) -> str:
        lines = []
        for average in self.averages:
            mean, summary = average.summary.curve, average.summary
            numbers = {
                "primacy_recency_index": summary.primacy_recency_index,
                "center_of_mass": summary.center_of_mass,
            }
            text = ", ".join(f"{name} {value}" for name, value in numbers.items() if value)
            lines.append(
                f"<Curve of {mean.model} by {mean.method.name} over {mean.dataset}: {mean.n:,} "
                f"pairs of {mean.n_documents:,} documents{'; ' + text if text else ''}>"
            )
        return "\n".join(lines)


def averaged(
    compute: Compute,
    specs: Iterable[RetrieverSpec],
    method: Method,
    dataset: str,
    read_by: Callable[[RetrieverSpec], tuple[Sequence[TextPair], str]],
    run: Callable[[Job], object],
) -> tuple[list[DataSetCurve], list[FailureRow], list[str]]:
    """The mean curve of each model, with missing results computed by `run`, the failed pairs and
    models, and the reasons why models have no curve. `read_by` returns a model's pairs and their
    selection as text."""
    averages: list[DataSetCurve] = []
    jobs: list[Job] = []
    failures: list[FailureRow] = []
    reasons: list[str] = []
    for spec in specs:
        n_before = len(jobs)
        try:
            compute.require_fit(compute.identify(spec), method)
            pairs, words = read_by(spec)
            jobs.append(compute.attribution_job(spec, method, pairs, f"{dataset}: {words}"))
            run(jobs[-1])
            averages.append(compute.curve(spec, method, pairs, dataset, words))
        except UserError as reason:
            reasons.append(str(reason))
            if not failure_rows(jobs[n_before:]):
                failures.append(FailureRow(spec.name, None, str(reason)))
    return averages, [*failure_rows(jobs), *failures], reasons
