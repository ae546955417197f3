"""The study `differences`: do models differ on the same pairs, queries and documents?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.text import listed
from poslens.attribution.types import Provenance
from poslens.cache.shipped.preferences import short_verdict
from poslens.cache.storage.store import StoredCurves
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_model, resampling
from poslens.compute.runs import Job
from poslens.figures.figure_base import (
    canvas,
    faint,
    intervals,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style, escape, wrap
from poslens.paired import (
    DifferenceRow,
    ItemMeasure,
    MeasuredModel,
    index_measure,
)
from poslens.parameters import Integer, Parameters, Settings
from poslens.rows import Table
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.cause.tables import cause_measure
from poslens.studies.passport import service as passports
from poslens.studies.passport.service import RELOCATION, ModelPassport
from poslens.study import Asked, Figure, Study, register
from poslens.study_part import MAX_PAIRS, Scope

PARTS = (RELOCATION.key, "position_effect", "ranking", "audit")
"""The parts of a passport whose measures are compared."""

SALIENCY = make_method("saliency")


@dataclass(frozen=True)
class MeasuredSummary:
    """The measures of one model. `curves` are the saliency curves of the pairs whose evidence is
    moved; None if the model has no gradients."""

    card: ModelPassport
    curves: StoredCurves | None


_LABEL_EM = 12
"""Maximum width of a row's label, so that the plot has room next to it on a phone."""


def differences_in_margins(summaries: Sequence[MeasuredSummary], style: Style) -> go.Figure:
    """Differences divided by their margins, with a row for each measure. Bars are 95% intervals.
    Two models are equivalent if the whole 90% interval is in the band from -1 to 1."""
    # A short title, because rows' labels leave it little room on a phone.
    figure = canvas("differences", style, "Difference (margins)", "")
    band = {"fillcolor": faint(style.colors.muted, 0.15), "line_width": 0, "layer": "below"}
    figure.add_vrect(x0=-1, x1=1, **band)
    by_models: dict[tuple[str, str], list[DifferenceRow]] = {}
    for difference in DIFFERENCES.differences(summaries):
        by_models.setdefault((difference.model, difference.against), []).append(difference)
    labels: dict[str, list[str]] = {}
    for number, ((name, other), differences) in enumerate(by_models.items()):
        look = style.line(number)
        scaled = [_in_margins(difference) for difference in differences]
        for title in (difference.measure for difference in differences):
            labels[title] = [
                line
                for part in title.replace(" (", "\n(").splitlines()
                for line in wrap(part, _LABEL_EM * style.small, style.small)
            ]
        figure.add_trace(
            go.Scatter(
                x=[estimate.value for estimate in scaled],
                y=["<br>".join(map(escape, labels[each.measure])) for each in differences],
                orientation="h",
                mode="markers",
                name=legend_name(f"{name} minus {other}", style),
                offsetgroup=str(number),
                marker=style.marker(number, 0.55),
                error_x=intervals(scaled, faint(str(look["color"]), 0.6)),
                customdata=[difference.in_words for difference in differences],
                hovertemplate="%{y}: %{customdata}",
            )
        )
    # `nticks` shows the labels of all rows.
    figure.update_yaxes(type="category", autorange="reversed", nticks=0, showgrid=False)
    row_px = max(
        1.3 * style.small * max(map(len, labels.values()), default=1),
        0.9 * style.font_size * len(by_models),
    )
    rows_px = (row_px + 0.5 * style.font_size) * len(labels)
    margin = figure.layout.margin
    figure.update_layout(
        scattermode="group",
        scattergap=0.5,
        height=max(figure.layout.height, round(rows_px + margin.t + margin.b)),
    )
    return with_legend(figure, style)


def _in_margins(row: DifferenceRow) -> Estimate:
    """A difference with its interval in units of its margin."""
    estimate, margin = row.difference.difference, row.difference.margin
    low, high = (None if end is None else end / margin for end in (estimate.low, estimate.high))
    return replace(estimate, value=estimate.value / margin, low=low, high=high)


class Differences(Study[DataSet, Asked[DataSet], MeasuredSummary]):
    """Compares every pair of models in each measure."""

    name = "differences"
    question = "Do models differ on the same pairs, queries and documents?"
    unit = "computation"
    reads = (
        "Each marker is a measure of one model minus that of the other, over the same pairs, "
        "queries or documents. The unit is the measure's margin of equivalence; the gray band is "
        "one margin on each side of 0."
    )
    limits = (
        "Relocation difference: score with the evidence in the last third minus first third, so "
        "negative means primacy. nDCG@10 difference: with the evidence first minus with it last, "
        "so positive means primacy. Nearer to 0, both mean less position bias. Saliency index: "
        "primacy-recency index of the mean saliency curve, negative for primacy; nearer to 0, it "
        "need not mean less bias. Brackets are 95% bootstrap intervals over documents; p is "
        "adjusted for the number of rows (Holm). Equivalent: the 90% interval is within the margin "
        "(two one-sided tests at 5%), which is 0.05 standard deviations of the scores, 0.02 of the "
        "nDCG@10 difference, 0.01 of nDCG@10, 2 percentage points of unretrieved sentences, or "
        "0.05 of the saliency index."
    )
    parameters = Parameters(
        pairs=Integer(
            default=DEFAULT_PAIRS,
            low=2,
            help="Maximum number of pairs whose evidence is moved, spread evenly over the data "
            "set.",
        ),
    )
    compared = ("MiniLM-primacy", "MiniLM-recency")
    tables: ClassVar[Mapping[str, Table[MeasuredSummary]]] = {}
    figures = (Figure("Differences in margins of equivalence", differences_in_margins),)

    def corpus(self, data: DataSet, settings: Settings) -> DataSet:
        return data

    def job(self, compute: Compute, subject: Asked[DataSet]) -> Job:
        """A job that computes the missing measures; progress counts measures."""
        card = _passport(compute, subject)
        saliency = _saliency_job(card.scope)
        additional = [] if saliency is None else [("Saliency", saliency)]
        return passports.job(compute, card, "measures", additional)

    def summarize(self, compute: Compute, subject: Asked[DataSet]) -> MeasuredSummary | None:
        """The measures of one model; None while one is missing.

        Raises:
            UserError: the data set has none of them.
        """
        card = _passport(compute, subject)
        saliency = _saliency_job(card.scope)
        if card.missing or (saliency is not None and saliency.has_left()):
            return None
        if not _measures(card):
            reasons = dict.fromkeys(part.absent for part in card.parts if part.absent)
            raise UserError(f"{card.name} has no measure to compare: {' '.join(reasons)}")
        curves = None
        if saliency is not None:
            curves = compute.store.curves(card.model.key, SALIENCY, card.scope.moved)
        return MeasuredSummary(card, curves)

    def measured(self, summary: MeasuredSummary) -> MeasuredModel:
        """The measures by item; those without items are omitted."""
        card, scope = summary.card, summary.card.scope
        measures = _measures(card)
        if RELOCATION.key in measures:
            measures[RELOCATION.key] = cause_measure(
                scope.compute, scope.spec, relocation_method(), scope.moved
            )
        if summary.curves is not None:
            documents = {pair.pair_id: pair.document for pair in scope.moved}
            measures["saliency"] = index_measure(summary.curves, documents, "saliency index")
        return MeasuredModel(card.name, [each for each in measures.values() if each.rows])

    def verdict(self, summary: MeasuredSummary) -> str:
        """The model's own values of the measures, without those in standard deviations; or, if it
        has no others, which they are."""
        card = summary.card
        values = [
            f"{measure.title} "
            + format(np.mean([*measure.rows.values()]), ".1%" if measure.share else ".3f")
            for part, measure in _measures(card).items()
            if part != RELOCATION.key
        ]
        if not values:  # a reranker
            titles = [measure.title for measure in self.measured(summary).measures]
            return f"{card.name}: compared only in {listed(titles)}."
        return f"{card.name}: {', '.join(values)}."

    def remarks(self, summaries: Sequence[MeasuredSummary]) -> list[str]:
        """Why models lack measures."""
        parts = (part for summary in summaries for part in summary.card.parts)
        return list(dict.fromkeys(part.absent for part in parts if part.absent))

    def provenance(self, summary: MeasuredSummary) -> Provenance:
        """Everything needed to reproduce the first measure; see `provenances` for all."""
        return summary.card.provenance[0]

    def provenances(
        self, summaries: Sequence[MeasuredSummary], shown: str = ""
    ) -> list[Provenance]:
        """The provenance of each measure of each model."""
        entries = []
        for summary in summaries:
            entries += summary.card.provenance
            if (curves := summary.curves) is not None:
                ids = set(curves.pair_ids)
                moved = summary.card.scope.moved
                n_documents = len({pair.document for pair in moved if pair.pair_id in ids})
                entries.append(
                    of_model(
                        summary.card.model,
                        SALIENCY,
                        summary.card.dataset,
                        n_pairs=len(curves.pair_ids),
                        n_documents=n_documents,
                        truncated=curves.n_truncated,
                        selection=summary.card.provenance[0].selection,
                        interval=resampling(n_documents) if n_documents >= MIN_DOCUMENTS else "",
                        preference=short_verdict(SALIENCY, summary.card.model.spec),
                    )
                )
        return entries


def _passport(compute: Compute, subject: Asked[DataSet]) -> ModelPassport:
    """The passport of the measures, from stored results."""
    n = subject.settings.pairs
    return passports.passport(compute, subject.spec, subject.corpus, MAX_PAIRS, PARTS, n)


def _measures(card: ModelPassport) -> dict[str, ItemMeasure]:
    """The measure of each part that has numbers, by the part's key."""
    return {
        part.key: number.measure for part in card.parts for number in part.numbers if number.measure
    }


def _saliency_job(scope: Scope) -> Job | None:
    """A job for the saliency of the pairs whose evidence is moved; None without such pairs, or if
    the model has no gradients."""
    if not scope.moved or not METHODS[SALIENCY.name].fits(family_of(scope.spec)):
        return None
    name = f"{scope.data.name}: {len(scope.moved)} moved pairs"
    return scope.compute.attribution_job(scope.spec, SALIENCY, scope.moved, name)


DIFFERENCES = register(Differences())
