"""Parts of a passport about the attribution curve: its shape, and how much of it is due to the
query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.null_controls import QUERY_CONTROLS
from poslens.attribution.interventions.segments import documents_of
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.shipped.preferences import verdict
from poslens.compute.provenance import of_controlled
from poslens.compute.runs import Job
from poslens.figures.curves import mean_curves
from poslens.figures.figure_base import quantity
from poslens.studies.cause.figures import minus_null_curves
from poslens.studies.curves import null_controls
from poslens.studies.curves.words import index_sentence, too_few
from poslens.study_part import (
    NO_QUERIES,
    ONE_SIDED,
    Number,
    PartAnswer,
    PartQuestion,
    Scope,
    number,
)

LIMITS = (
    "Attribution isn't causation: compare it with the effect of the evidence's position on the "
    "score."
)
PROFILE_LIMITS = (
    "The query-free profile shows how sensitive the document's own vector is to each token; no "
    "query is involved."
)
PROFILE = make_method("profile")


def curve_method(spec: RetrieverSpec) -> Method:
    """The method whose curve a passport shows: gradient saliency, or the first that fits."""
    fitting = [entry for entry in METHODS.values() if entry.fits(family_of(spec))]
    quick = [entry for entry in fitting if not entry.slow] or fitting
    return make_method(quick[0].name)


def _has_profile(spec: RetrieverSpec) -> bool:
    return METHODS["profile"].fits(family_of(spec))


def _attribution(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """Attribution by position, and the query-free profile. With queries, the profile is shown only
    if it is stored (`NULL_CONTROL` computes it). Without queries, only the profile is computed and
    shown."""
    compute, spec, method = scope.compute, scope.spec, curve_method(scope.spec)
    methods = [(method, scope.pairs, len(scope.data.pairs), "pairs")] if scope.has_queries else []
    if _has_profile(spec):
        methods.append((PROFILE, scope.of_each, len(documents_of(scope.data.pairs)), "documents"))
    if not methods:
        raise UserError(NO_QUERIES)
    jobs = [compute.attribution_job(spec, each, pairs, scope.name) for each, pairs, *_ in methods]
    curves = [
        compute.curve(spec, each, pairs, scope.data.name, scope.selection(pairs, n_all, items))
        for (each, pairs, n_all, items), job in zip(methods, jobs, strict=True)
        if job.n_done() and not too_few(spec.name, job.n_done(), job.total)
    ]
    if not curves:
        return jobs[:1], None
    numbers = [number for curve in curves for number in _curve_numbers(curve.summary)]
    provenance = tuple(curve.provenance() for curve in curves)
    # The lines belong to one model, so the legend names their methods instead.
    lines = [
        replace(curve.summary.curve, model=METHODS[curve.summary.curve.method.name].title)
        for curve in curves
    ]
    both = len(lines) > 1
    title = "Attribution (1 = document's 99th percentile)" if both else quantity(lines[0].method)
    entry = METHODS[methods[0][0].name]
    sentence = index_sentence(entry.title, curves[0].summary.primacy_recency_index)
    return jobs[:1], PartAnswer(
        f"{sentence} {verdict(methods[0][0])}".strip(),
        numbers,
        lambda style: mean_curves(lines, style, y_title=title, provenance=provenance),
        provenance,
        limits=f"{PROFILE_LIMITS * both} {LIMITS} {entry.caveat}".strip(),
    )


def _curve_numbers(summary: CurveSummary) -> list[Number]:
    entry = METHODS[summary.curve.method.name]
    index = f"{entry.title}, primacy-recency index (-1 to 1; negative: primacy)"
    center = f"{entry.title}, center of mass (0: start, 1: end)"
    return [
        *number(f"{entry.name}_primacy_recency_index", index, summary.primacy_recency_index),
        *number(f"{entry.name}_center_of_mass", center, summary.center_of_mass, ".3f"),
    ]


def _null_control(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """The attribution curve minus that of an unrelated query, and the correlation of the unrelated
    query's curve with the query-free profile."""
    compute, spec, method = scope.compute, scope.spec, curve_method(scope.spec)
    kind, everything = QUERY_CONTROLS[0], scope.data.pairs
    nulls = null_controls.controls(kind, scope.pairs, everything)
    original = compute.attribution_job(spec, method, scope.pairs, scope.name)
    null = compute.attribution_job(spec, method, nulls, f"{scope.name} minus {kind}")
    jobs = [original, null]
    if _has_profile(spec):
        jobs.append(compute.attribution_job(spec, PROFILE, scope.of_each, scope.name))
    if too_few(spec.name, null.n_done(), len(nulls)) or not original.n_done():
        return jobs, None
    curve = null_controls.controlled(compute, spec, method, kind, scope.pairs, everything)
    selection = scope.selection(scope.pairs, len(everything))
    model = compute.identify(spec)
    provenance = of_controlled(model, method, scope.data.name, curve, selection)
    # Only over documents of this passport, whatever else is stored.
    covered = {pair.pair_id for pair in scope.pairs}
    both = [pair for pair in scope.of_each if pair.pair_id in covered]
    agreement = null_controls.query_controls_agree(compute, spec, method, both, everything)
    index = "primacy-recency index minus that of the control"
    distance = "distance from the control's curve (0: the same curve)"
    profile = "Pearson correlation of the unrelated query's mean curve with the query-free profile"
    return jobs, PartAnswer(
        curve.sentence,
        [
            *number("index_minus_control", index, curve.index),
            *number("distance", distance, curve.distance, ".3f", ONE_SIDED),
            *number("controls_agree", profile, agreement, ".2f"),
        ],
        lambda style: minus_null_curves([(spec.name, curve)], method, style, provenance),
        (provenance,),
    )


ATTRIBUTION = PartQuestion("attribution", "Attribution by position", LIMITS, "pairs", _attribution)
NULL_CONTROL = PartQuestion(
    "null_control",
    "Dependence on the query",
    "The unrelated query comes from the same data set and may resemble the pair's own query; the "
    "effect of what they have in common is subtracted too.",
    "pairs",
    _null_control,
    needs_queries=True,
)
