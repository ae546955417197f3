"""The study `agreement`: the rank correlation of a method's curves with measured effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.agreement import N_GRID, Agreement
from poslens.attribution.methods import METHOD_TITLES, METHODS
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job
from poslens.figures.palettes import Style
from poslens.parameters import Parameters, Settings
from poslens.rows import ModelRow, Table, column
from poslens.studies.cause import service
from poslens.studies.cause.over_items import CauseItems, CauseSubject
from poslens.studies.cause.study import CAUSE
from poslens.studies.faithfulness.figures import gains
from poslens.studies.selections import METHOD_CHOICE, OfPairs, methods_for
from poslens.study import AskedMethod, Figure, ModelSummary, register


@dataclass(frozen=True)
class AgreementSummary(ModelSummary[CauseSubject]):
    """A method's agreement with each intervention; the subject's method is the one compared."""

    agreements: dict[Method, Agreement]


@dataclass(frozen=True)
class MethodAgreementRow(ModelRow):
    """The agreement of a method with one intervention."""

    method: str = column("Name of the method.", words=METHOD_TITLES)
    intervention: str = column("relocation or ablation.")
    n: int = column("Number of pairs in the mean curves.")
    documents: int = column("Number of distinct documents, which intervals resample.")
    left_out: int = column(
        "Pairs whose evidence is read whole at fewer than two of the positions that it moves to; 0 "
        "for ablation."
    )
    mean_curves: Estimate | None = column(
        "Spearman's correlation of the mean curves, -1 to 1.", form="+.3f"
    )
    mean_over_pairs: Estimate | None = column(
        "Mean over pairs of Spearman's correlation of their curves, -1 to 1.",
        form="+.3f",
    )


def _rows(summary: AgreementSummary) -> Iterator[MethodAgreementRow]:
    name = summary.asked.method.name
    for intervention, agreement in summary.agreements.items():
        yield MethodAgreementRow(
            agreement.model,
            name,
            intervention.name,
            agreement.n,
            agreement.n_documents,
            agreement.n_left_out,
            agreement.means,
            agreement.each,
        )


def _correlations(summaries: Sequence[AgreementSummary], style: Style) -> go.Figure:
    """The rank correlation of each method's mean curve with each intervention's."""
    rows = [
        (f"{summary.name} {METHODS[summary.asked.method.name].title}, {each.name}", mean)
        for summary in summaries
        for each, agreement in summary.agreements.items()
        if (mean := agreement.means) is not None
    ]
    if not rows:
        raise UserError("No mean curve has a rank correlation: a curve is constant.")
    return gains(rows, "Rank correlation", style)


class AgreementStudy(OfPairs[CauseItems, CauseSubject, AgreementSummary]):
    """Correlates each method's curves with the effects of relocation and ablation."""

    name = "agreement"
    title = "Agreement with interventions"
    question = "Does a method's curve agree with measured changes of the score?"
    unit = "result"
    reads = (
        "The rank correlation of each method's mean curve with the mean curve of relocation (the "
        "score as the evidence moves) or ablation (the score lost without each part); 1 means the "
        "same order of positions."
    )
    limits = (
        "Spearman correlation with 95% bootstrap intervals over documents. Mean curves: between "
        f"the method's mean curve and the mean causal curve, at {N_GRID} positions. Mean over "
        "pairs: between each pair's own curves, where the positions of relevant words outweigh any "
        "bias. Relocation uses only positions at which the model reads all of the evidence. Mean "
        "curves need two such positions per pair; a pair's own correlation needs three, and is "
        "undefined for a constant curve."
    )
    parameters = Parameters(methods=METHOD_CHOICE, **CAUSE.parameters)
    tables: ClassVar = {"agreement": Table(MethodAgreementRow, _rows)}
    figures = (Figure("Rank correlation of mean curves", _correlations),)

    def corpus(self, data: DataSet, settings: Settings) -> CauseItems:
        return CAUSE.corpus(data, settings)

    def notes(self, data: DataSet, corpus: CauseItems) -> list[str]:
        return CAUSE.notes(data, corpus)

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: CauseItems, settings: Settings
    ) -> list[CauseSubject]:
        methods = methods_for(compute, spec, settings.methods)
        return [AskedMethod(spec, corpus, settings, method) for method in methods]

    def job(self, compute: Compute, subject: CauseSubject) -> Job:
        """A job that applies the interventions and attributes the pairs; progress counts the
        results of both."""
        model, spec, corpus = compute.identify(subject.spec), subject.spec, subject.corpus
        compute.require_fit(model, subject.method)
        pairs, scope = corpus.pairs, corpus.scope
        parts = [
            (each.name, service.job(compute, spec, each, pairs, scope))
            for each in corpus.interventions
        ]
        attribution = compute.attribution_job(spec, subject.method, pairs, scope)
        parts.append((subject.method.name, attribution))

        label = f"{spec.name}, {subject.method.name}"
        key = f"agreement, {corpus.interventions}, {scope}"
        return compute.joint_job(model, subject.method, key, parts, label=label, doing="agreement")

    def summarize(self, compute: Compute, subject: CauseSubject) -> AgreementSummary | None:
        """The agreement with each intervention; None while a result is missing.

        Raises:
            UserError: no pair has both curves.
        """
        job = self.job(compute, subject)
        if job.has_left():
            return None
        try:
            agreements = {
                each: _agreement(compute, subject, each) for each in subject.corpus.interventions
            }
        except UserError as error:
            reasons = job.failures()
            if not reasons:
                raise
            raise UserError(
                f"No pair has both curves of {subject.spec.name}, {subject.method.name}, because "
                f"{counted(len(reasons), 'result')} failed: {next(iter(reasons.values()))}"
            ) from error
        return AgreementSummary(compute.identify(subject.spec), subject, agreements)

    def so_far(self, compute: Compute, subject: CauseSubject) -> AgreementSummary | None:
        """The agreement over the pairs that have both curves."""
        agreements = {}
        for intervention in subject.corpus.interventions:
            with suppress(UserError):  # no pair has both
                agreements[intervention] = _agreement(compute, subject, intervention)
        if not agreements:
            return None
        return AgreementSummary(compute.identify(subject.spec), subject, agreements)

    def verdict(self, summary: AgreementSummary) -> str:
        """The correlation of the mean curves with each intervention, or why it is undefined."""
        title, name = METHODS[summary.asked.method.name].title, summary.name
        total = len(summary.asked.corpus.pairs)
        parts = [
            f"{each.name} "
            + (agreed.means.text("+.2f") if agreed.means else _undefined(agreed, total))
            for each, agreed in summary.agreements.items()
        ]
        return f"{name}, {title}: rank correlation of mean curves with {', '.join(parts)}."

    def provenance(self, summary: AgreementSummary) -> Provenance:
        asked = summary.asked
        # An intervention can have more pairs than another, for example if only it needs evidence.
        first, *others = sorted(summary.agreements.values(), key=lambda agreed: -agreed.n)
        fewer = {agreed.n for agreed in others} - {first.n}
        counts = (f"{each.name} {agreed.n:,}" for each, agreed in summary.agreements.items())
        causes = " and ".join(map(repr, summary.agreements))
        return of_model(
            summary.model,
            f"agreement of {asked.method!r} with {causes}",
            asked.corpus.dataset,
            n_pairs=first.n,
            n_documents=first.n_documents,
            truncated=first.n_truncated,
            selection=(asked.corpus.selection, f"pairs: {', '.join(counts)}" if fewer else ""),
        )


def _undefined(agreement: Agreement, total: int) -> str:
    """The reason why mean curves have no correlation."""
    if agreement.n > 1:
        return "undefined (a mean curve is constant)"
    return f"undefined ({agreement.n} of {counted(total, 'pair')} with both curves, 2 needed)"


def _agreement(compute: Compute, subject: CauseSubject, intervention: Method) -> Agreement:
    pairs = subject.corpus.pairs
    return service.agreement_of(compute, subject.spec, subject.method, intervention, pairs)


AGREEMENT = register(AgreementStudy())
