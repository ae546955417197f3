"""Parts of a passport about rankings: position bias, and the effect of attention calibration."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.cache.kinds.rankings import fingerprint
from poslens.compute.runs import Job
from poslens.studies.debias.figures import front
from poslens.studies.debias.service import (
    HeldOutResult,
    debias_result,
    grid,
    job,
    verdict,
)
from poslens.studies.ranking import service as rankings
from poslens.studies.ranking.figures import evidence_bins
from poslens.study_part import Item, Number, PartAnswer, PartQuestion, Scope


def _ranking(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """nDCG@10 and its harmonic mean over positions; PSI, with its mean under permutation."""
    compute, spec = scope.compute, scope.spec
    setup = rankings.RankingSetup(rankings.collection_of(scope.data))
    jobs = [rankings.job(compute, spec, setup)]
    result = debias_result(compute, spec, [], setup)
    if result is None:
        return jobs, None
    quality, evaluation = result.plain.quality, result.plain.ranked.evaluation
    corpus, profile = fingerprint(setup.collection), evaluation.profile
    items = tuple(
        Item(query.query_id, corpus, query.document, float(score))
        for query, score in zip(setup.queries, evaluation.per_query[NDCG], strict=True)
        if query.evidence is not None
    )
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
        finding = f"PSI is {psi:.3f} ({note}). {rankings.psi_verdict(p, quality.n)}"
    provenance = (result.plain.ranked.provenance(),)
    return jobs, PartAnswer(
        finding,
        numbers,
        None
        if profile is None
        else lambda style: evidence_bins({spec.name: profile}, style, provenance=provenance),
        provenance,
    )


def _calibration(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
    """The effect of attention calibration, and whether it is recommended."""
    compute, spec, points = scope.compute, scope.spec, grid(scope.spec)
    setup = rankings.RankingSetup(rankings.collection_of(scope.data))
    jobs = [job(compute, spec, points, setup)]
    result = debias_result(compute, spec, points, setup)
    if result is None or result.missing:
        return jobs, None
    provenance = tuple(result.provenance())
    return jobs, PartAnswer(
        verdict(result),
        _changes(result.judgement),
        lambda style: front(result, "harmonic", style, provenance=provenance),
        provenance,
    )


def _changes(judgement: HeldOutResult | None) -> list[Number]:
    """Changes on the held-out queries."""
    if judgement is None or judgement.change is None:
        return []
    name, change = judgement.point.name, judgement.change
    changes = (
        ("ndcg_at_10_change", "change of nDCG@10", change.mean),
        (
            "harmonic_mean_change",
            "change of the harmonic mean of nDCG@10 over positions",
            change.harmonic,
        ),
        ("psi_change", "change of PSI", change.psi),
    )
    return [
        Number(key, f"{name}, {title}", comparison.difference, note=comparison.clause)
        for key, title, comparison in changes
        if comparison is not None
    ]


RANKING = PartQuestion(
    "ranking",
    "Ranking by position of the evidence",
    "Queries differ between positions and may differ in difficulty.",
    "queries",
    _ranking,
)
CALIBRATION = PartQuestion(
    "calibration",
    "Effect of attention calibration",
    "The setting is selected on one half of the data set and evaluated on the other half; on "
    "another data set, another setting may be better.",
    "queries",
    _calibration,
)
