"""Parts of a passport about rankings: position bias, and the effect of attention calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.cache.kinds.rankings import fingerprint
from poslens.compute.provenance import with_interval
from poslens.compute.runs import Job
from poslens.studies.debias.front import quality_front
from poslens.studies.debias.points import NO_POSITIONS
from poslens.studies.debias.study import DEBIAS, selection_sentence
from poslens.studies.debias.summary import NO_CHANGES, HeldOutTest, quality_of
from poslens.studies.ranking import service as rankings
from poslens.studies.ranking.figures import evidence_bins
from poslens.study import stored
from poslens.study_part import Item, Number, PartAnswer, PartQuestion, Scope

CALIBRATION_GRID = {"steps": 0, "pairs": 0, "strengths": (0.5, 1.0), "blocks": (64, 128)}
"""Settings of `debias` whose effect a passport states."""


def _ranking(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """nDCG@10 and its harmonic mean over positions; PSI, with its mean under permutation. Without
    evidence, nDCG@10 alone."""
    compute, spec = scope.compute, scope.spec
    setup = rankings.RankingSetup(rankings.collection_of(scope.data))
    has_evidence = any(query.evidence is not None for query in setup.queries)
    jobs = [rankings.job(compute, spec, setup)]
    ranked = rankings.ranked(compute, spec, setup)
    if ranked is None:
        return jobs, None
    quality, evaluation = quality_of(ranked), ranked.evaluation
    corpus = fingerprint(setup.collection)
    items = tuple(
        Item(query.query_id, corpus, query.document, float(score))
        for query, score in zip(setup.queries, evaluation.per_query[NDCG], strict=True)
        if query.evidence is not None or not has_evidence
    )
    if quality is None:
        mean = evaluation.estimates[NDCG]
        finding = f"nDCG@10 is {mean.text()}. {NO_POSITIONS}"
        numbers = [Number("ndcg_at_10", "nDCG@10", mean, ".3f", items=items)]
        provenance = (with_interval(ranked.provenance(), mean),)
        limits = "nDCG@10 alone says nothing about position bias."
        return jobs, PartAnswer(finding, numbers, None, provenance, limits)
    harmonic = "harmonic mean of nDCG@10 over bins of evidence position"
    numbers = [
        Number("ndcg_at_10", "nDCG@10", quality.mean, ".3f", items=items),
        Number("harmonic_mean", harmonic, quality.harmonic, ".3f"),
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
        verdict = rankings.psi_verdict(psi, permuted, p, quality.n)
        finding = f"The position sensitivity index (PSI) is {psi:.3f} ({note}). {verdict}"
    provenance = (with_interval(ranked.provenance(), quality.mean),)
    return jobs, PartAnswer(
        finding,
        numbers,
        lambda style: evidence_bins([ranked], style, provenance),
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
        _changes(test) if test else [],
        lambda style: quality_front(summaries, style, provenance),
        provenance,
    )


def _changes(test: HeldOutTest) -> list[Number]:
    """Changes on the held-out queries."""
    changes = test.changes or NO_CHANGES
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
    "Queries differ between positions and may differ in difficulty.",
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
