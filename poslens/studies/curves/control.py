"""The study `control`: the mean curve of a method minus that of a null control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import INDEX_MARGIN, Comparison
from poslens.attribution.interventions.null_controls import (
    CONTROLS,
    ControlledCurve,
    controls_for,
)
from poslens.attribution.methods import METHOD_TITLES, METHODS, make_method
from poslens.attribution.nouns import counted
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import N_BINS, Provenance
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_controlled
from poslens.compute.runs import Job
from poslens.figures.palettes import Style
from poslens.parameters import Choice, Parameters, Settings
from poslens.rows import ModelRow, Table, column
from poslens.studies.cause.figures import minus_null_curves
from poslens.studies.curves.null_controls import (
    control_job,
    controlled,
    controls,
)
from poslens.studies.selections import READABLE, OfPairs, SelectedPairs, number_of, selected
from poslens.study import AskedMethod, Figure, ModelSummary, register


@dataclass(frozen=True)
class ControlPairs(SelectedPairs):
    """The pairs, and all pairs of the data set, `among` which unrelated queries are drawn."""

    among: Pairs


ControlSubject: TypeAlias = AskedMethod[ControlPairs]
"""One model with one method and control."""


def nulls_of(subject: ControlSubject) -> Pairs:
    """The control pairs."""
    return controls(subject.settings.control, subject.corpus.pairs, subject.corpus.among)


@dataclass(frozen=True)
class ControlSummary(ModelSummary[ControlSubject]):
    """A mean curve minus its control. `comparison` is that of the indices."""

    curve: ControlledCurve
    comparison: Comparison | None


@dataclass(frozen=True)
class ControlRow(ModelRow):
    """A method's mean curve compared with that under a control."""

    method: str = column("Name of the method.", shown=False, words=METHOD_TITLES)
    control: str = column("What the control changes.")
    n: int = column("Pairs with a curve and a control curve.", title="pairs")
    documents: int = column("Number of distinct documents, which intervals resample.")
    index_minus_control: Comparison | None = column(
        "Primacy-recency index of the mean curve minus that of the mean control, -2 to 2.",
        form="+.3f",
    )
    distance: Estimate | None = column(
        "Mean over positions of the absolute difference of both mean curves, divided by the mean "
        "of the curve's absolute values; 0 is no difference. The interval is one-sided, from 0.",
        title="distance from control",
        one_sided=True,
    )
    n_zero: int = column(
        "Pairs whose control attributes nothing to any token; their control curves are 0.",
        shown=False,
    )


@dataclass(frozen=True)
class ControlPointRow(ModelRow):
    """A position of a mean curve minus its control."""

    control: str = column("What the control changes.")
    position: float = column("Position in the tokens read, 0 to 1.")
    mean: Estimate = column("Mean difference, in the unit of the normalization.", form="+.3f")
    n: int = column("Number of pairs in the mean.")
    documents: int = column("Number of distinct documents, which intervals resample.")


def _rows(summary: ControlSummary) -> Iterator[ControlRow]:
    curve, asked = summary.curve, summary.asked
    yield ControlRow(
        summary.name,
        asked.method.name,
        CONTROLS[asked.settings.control],
        curve.n,
        curve.n_documents,
        summary.comparison,
        curve.distance,
        curve.n_zero,
    )


def _points(summary: ControlSummary) -> Iterator[ControlPointRow]:
    curve, control = summary.curve, CONTROLS[summary.asked.settings.control]
    for b in range(N_BINS):
        low, high = (
            None if end is None else float(end[b]) for end in (curve.ci_low, curve.ci_high)
        )
        mean = Estimate(float(curve.mean[b]), low, high, curve.n, curve.n_documents)
        position = (b + 0.5) / N_BINS
        yield ControlPointRow(summary.name, control, position, mean, curve.n, curve.n_documents)


def _curves(summaries: Sequence[ControlSummary], style: Style) -> go.Figure:
    """The curves minus their controls, a line for each model."""
    curves = [(summary.name, summary.curve) for summary in summaries]
    return minus_null_curves(curves, summaries[0].asked.method, style)


class ControlStudy(OfPairs[ControlPairs, ControlSubject, ControlSummary]):
    """Subtracts from each pair's curve the curve of its control."""

    name = "control"
    title = "Curve minus control"
    question = "What remains of a method's curve without what a control keeps?"
    unit = "curve"
    reads = (
        "Each pair's curve minus its curve under the control. What remains is due to what the "
        "control changes: the query (an unrelated query, the query-free profile), the order of the "
        "content (shuffled sentences), or the content (filler text)."
    )
    limits = (
        "Bands and intervals are 95% bootstrap intervals over documents. Verdict on the difference "
        f"of the primacy-recency indices; equivalent: within {INDEX_MARGIN:g} of 0. Distance: mean "
        "over positions of the absolute difference of both mean curves, divided by the mean of the "
        "curve's absolute values; its interval is one-sided, from 0. A pair whose control can't be "
        "made, such as a document of one sentence to shuffle, is left out. A control without any "
        "attribution, such as one whose query shares no term with the document, counts as 0."
    )
    parameters = Parameters(
        method=Choice(default="saliency", options=tuple(METHODS), help="Attribution method."),
        control=Choice(
            default="unrelated",
            options=tuple(CONTROLS),
            help="unrelated: a query of the same language that isn't about the document (not for "
            "profile, which uses no query). "
            "shuffled: the document's sentences in random order. filler: neutral text instead of "
            "the document. profile: the query-free profile (only for saliency of dense models).",
        ),
        pairs=number_of("pairs"),
        readable=READABLE,
    )
    compared = ("MiniLM-primacy", "MiniLM", "MiniLM-recency")
    tests = ("comparison",)
    tables: ClassVar = {
        "control": Table(ControlRow, _rows),
        "curve": Table(ControlPointRow, _points, "Curves", on_page=False),
    }
    figures = (Figure("Curves minus their control", _curves, intervals="curve"),)

    def corpus(self, data: DataSet, settings: Settings) -> ControlPairs:
        """The selected pairs, and all of the data set."""
        pairs, words = selected(data.pairs, settings.pairs)
        return ControlPairs(data.name, pairs, words, data.pairs)

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: ControlPairs, settings: Settings
    ) -> list[ControlSubject]:
        """One subject.

        Raises:
            UserError: the control does not apply to the method or the model.
        """
        method = make_method(settings.method)
        if settings.control not in (fitting := controls_for(method, [family_of(spec)])):
            if settings.control == "unrelated":
                why = f"changes only the query, which {method.name} doesn't use"
            elif "profile" in controls_for(method, ()):
                why = f"is for dense models only, and {spec.name} is not one"
            else:
                why = "is for saliency only"
            raise UserError(
                f"The control {settings.control} {why}: choose from {', '.join(fitting)}."
            )
        return [AskedMethod(spec, corpus, settings, method)]

    def job(self, compute: Compute, subject: ControlSubject) -> Job:
        """A job that attributes the pairs and their controls; progress counts both."""
        model, spec, corpus = compute.identify(subject.spec), subject.spec, subject.corpus
        compute.require_fit(model, subject.method)
        kind, method, scope = subject.settings.control, subject.method, corpus.scope
        parts = [
            ("pairs", compute.attribution_job(spec, method, corpus.pairs, scope)),
            (CONTROLS[kind], control_job(compute, spec, method, kind, nulls_of(subject), scope)),
        ]
        doing = f"{METHODS[method.name].title}, {CONTROLS[kind]}"
        key = f"control {kind}, {scope}"
        return compute.joint_job(model, method, key, parts, label=spec.name, doing=doing)

    def summarize(self, compute: Compute, subject: ControlSubject) -> ControlSummary | None:
        """The curve minus its control; None while a result is missing.

        Raises:
            UserError: no pair has both curves.
        """
        missing = self.job(compute, subject).has_left()
        return None if missing else self._of_stored(compute, subject)

    def so_far(self, compute: Compute, subject: ControlSubject) -> ControlSummary | None:
        """The curve minus its control, over the pairs that have both."""
        try:
            return self._of_stored(compute, subject)
        except UserError:
            return None

    def _of_stored(self, compute: Compute, subject: ControlSubject) -> ControlSummary:
        spec, corpus, kind = subject.spec, subject.corpus, subject.settings.control
        curve = controlled(compute, spec, subject.method, kind, corpus.pairs, corpus.among)
        return ControlSummary(compute.identify(spec), subject, curve, curve.comparison)

    def remarks(self, summaries: Sequence[ControlSummary]) -> list[str]:
        """How many pairs are left out, and how many controls have no attribution."""
        asked, remarks = summaries[0].asked, list[str]()
        if n := len(asked.corpus.pairs) - len(nulls_of(asked)):
            them = "it" if n == 1 else "them"
            remarks.append(
                f"{counted(n, 'pair')} left out, because the control can't be made of {them}."
            )
        remarks += [
            f"{summary.name}: {zero:,} of {counted(summary.curve.n, 'control curve')} "
            f"{'is' if zero == 1 else 'are'} 0 everywhere, because no token contributes to the "
            "score."
            for summary in summaries
            if (zero := summary.curve.n_zero)
        ]
        return remarks

    def verdict(self, summary: ControlSummary) -> str:
        curve = replace(summary.curve, comparison=summary.comparison)
        return f"{summary.name}: {curve.sentence}"

    def provenance(self, summary: ControlSummary) -> Provenance:
        asked = summary.asked
        corpus = asked.corpus
        return of_controlled(
            summary.model, asked.method, corpus.dataset, summary.curve, corpus.selection
        )


CONTROL = register(ControlStudy())
