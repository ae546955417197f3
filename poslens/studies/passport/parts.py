"""Parts of a passport that no study declares: attribution curves, and rankings with and without
attention calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.interventions.null_controls import QUERY_CONTROLS
from poslens.attribution.interventions.segments import documents_of
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.shipped.preferences import verdict
from poslens.compute.provenance import of_controlled, with_interval
from poslens.compute.runs import Job
from poslens.figures.curves import mean_curves
from poslens.figures.figure_base import quantity
from poslens.studies.cause.figures import minus_null_curves
from poslens.studies.curves import null_controls
from poslens.studies.curves.words import index_sentence, too_few
from poslens.studies.debias.front import quality_front
from poslens.studies.debias.points import NO_POSITIONS
from poslens.studies.debias.study import DEBIAS, selection_sentence
from poslens.studies.debias.summary import HeldOutTest, quality_of
from poslens.studies.ranking import service as rankings
from poslens.studies.ranking.figures import evidence_bins
from poslens.study_part import (
    NO_QUERIES,
    ONE_SIDED,
    Number,
    PartAnswer,
    PartQuestion,
    Scope,
    number,
)
from poslens.study_plan import stored

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
        f"{sentence} {verdict(methods[0][0], [spec])}".strip(),
        numbers,
        lambda style: mean_curves(lines, style, y_title=title),
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
    null = null_controls.control_job(compute, spec, method, kind, nulls, scope.name)
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
        lambda style: minus_null_curves([(spec.name, curve)], method, style),
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


# -- rankings --------------------------------------------------------------------------------------

CALIBRATION_GRID = {"steps": 0, "pairs": 0, "strengths": (0.5, 1.0), "blocks": (64, 128)}
"""Settings of `debias` whose effect a passport states."""


HARMONIC = "harmonic mean of nDCG@10 over bins of evidence position"
WITH_EVIDENCE = "queries with evidence"
"""The queries that the ranking part covers, if the data set also has queries without evidence."""


def _ranking(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """nDCG@10 and its harmonic mean over positions; PSI, with its mean under permutation: all over
    the queries with evidence. Without evidence, nDCG@10 of all queries alone."""
    compute, spec = scope.compute, scope.spec
    setup = rankings.RankingSetup(rankings.collection_of(scope.data))
    without = frozenset(query.query_id for query in setup.queries if query.evidence is None)
    with_evidence = 0 < len(without) < len(setup.queries)
    if with_evidence:
        setup = replace(setup, left_out=without, selection=WITH_EVIDENCE)
    jobs = [rankings.job(compute, spec, setup)]
    ranked = rankings.ranked(compute, spec, setup)
    if ranked is None:
        return jobs, None
    quality, evaluation = quality_of(ranked), ranked.evaluation
    (measure,) = ranked.by_item.measures
    if quality is None:
        mean = evaluation.estimates[NDCG]
        finding = f"nDCG@10 is {mean.text()}. {NO_POSITIONS}"
        numbers = [Number("ndcg_at_10", "nDCG@10", mean, ".3f", measure=measure)]
        provenance = (with_interval(ranked.provenance(), mean),)
        limits = "nDCG@10 alone says nothing about position bias."
        return jobs, PartAnswer(finding, numbers, None, provenance, limits)
    numbers = [
        Number("ndcg_at_10", "nDCG@10", quality.mean, ".3f", measure=measure),
        Number("harmonic_mean", HARMONIC, quality.harmonic, ".3f"),
    ]
    finding = "Too few positions have queries to compute PSI."
    psi, permuted, p = quality.psi, quality.psi_under_permutation, quality.p
    if psi is not None and permuted is not None and p is not None:
        note = f"mean with positions permuted across queries: {permuted:.3f}, p = {p:.2g}"
        beyond = Estimate(psi - permuted, n=quality.n)
        numbers += [
            Number("psi", "PSI", Estimate(psi, n=quality.n), ".3f", note),
            Number("psi_minus_permutation", "PSI minus its mean with positions permuted", beyond),
        ]
        verdict = rankings.psi_verdict(permuted, p, quality.n)
        finding = f"The position sensitivity index (PSI) is {psi:.3f} ({note}). {verdict}"
    provenance = (with_interval(ranked.provenance(), quality.mean),)
    return jobs, PartAnswer(
        finding,
        [replace(each, unit=setup.selection, with_evidence=with_evidence) for each in numbers],
        lambda style: evidence_bins([ranked], style),
        provenance,
    )


def _calibration(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """The effect of attention calibration, and whether it is recommended."""
    compute, settings = scope.compute, DEBIAS.parameters.settings(CALIBRATION_GRID)
    corpus = DEBIAS.corpus(scope.data, settings)
    versions = DEBIAS.subjects(compute, scope.spec, corpus, settings)
    jobs = [DEBIAS.job(compute, version) for version in versions]
    summaries = stored(DEBIAS, compute, versions)
    if len(summaries) < len(versions):
        return jobs, None
    ranked, test = DEBIAS.provenance(summaries[0]), summaries[0].test
    calibrations = "; ".join(
        version.calibration.words for version in versions if version.calibration
    )
    provenance = (replace(ranked, method=f"{ranked.method}; calibrated: {calibrations}"),)
    return jobs, PartAnswer(
        selection_sentence(summaries[0]),
        _held_out(test) if test else [],
        lambda style: quality_front(summaries, style),
        provenance,
    )


def _held_out(test: HeldOutTest) -> list[Number]:
    """Changes on the held-out queries, or the quality of the plain model there if it was
    selected."""
    changes = test.changes
    if test.recommendation is None:
        of_plain = f"held-out queries, {{}} of {test.name}, because no setting was selected"
        return [
            Number("ndcg_at_10", of_plain.format("nDCG@10"), test.before.mean, ".3f"),
            Number("harmonic_mean", of_plain.format(HARMONIC), test.before.harmonic, ".3f"),
        ]
    harmonic = "change in the harmonic mean of nDCG@10 over positions"
    numbers = (
        ("ndcg_at_10_change", "change in nDCG@10", changes.quality),
        ("harmonic_mean_change", harmonic, changes.harmonic),
        ("psi_change", "change in PSI", changes.psi),
    )
    return [
        Number(key, f"{test.name}, {title}", comparison.difference, note=comparison.clause)
        for key, title, comparison in numbers
        if comparison is not None
    ]


RANKING = PartQuestion(
    "ranking",
    "Ranking by position of the evidence",
    "Queries differ between positions and may differ in difficulty. In the chart, a fuller marker "
    "means that the model reads more of the evidence.",
    "queries",
    _ranking,
    needs_queries=True,
)
CALIBRATION = PartQuestion(
    "calibration",
    "Effect of attention calibration",
    "Calibration spreads a model's attention more evenly over the text's blocks of tokens, without "
    "training. The setting is selected on one half of the data set and evaluated on the other "
    "half; on another data set, another setting may be better.",
    "queries",
    _calibration,
)
