"""The tables of the study `debias`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.rows import PERCENT, PERCENTAGE_POINTS, ModelRow, Table, column
from poslens.studies.debias.points import HALF
from poslens.studies.debias.summary import DebiasSummary
from poslens.studies.ranking.rows import PERMUTED, PSI, P
from poslens.studies.ranking.tables import first_rank

HARMONIC = "Harmonic mean of nDCG@10 over evidence positions, 0 to 1."
TRAINED = "; null with training."


@dataclass(frozen=True)
class DebiasRow(ModelRow):
    """A model of the comparison, evaluated on held-out documents, or on all without training."""

    kind: str = column("plain, debiased, calibrated, or debiased and calibrated.")
    relocation_difference: Estimate | None = column(
        "Mean score with the evidence in the last third minus in the first.",
        form="+.4f",
    )
    size_change: Comparison | None = column(
        "Change in the relocation difference's size from the plain model; negative: less position "
        "bias.",
        form="+.4f",
    )
    rank_effect: Estimate | None = column(
        "Position effect on rank: nDCG@10 with the evidence first minus last, of held-out pairs.",
        title="position effect on rank",
        form="+.3f",
    )
    rank_effect_change: Comparison | None = column(
        "Change in the size of the position effect on rank from the plain model.",
        title="change in its size",
        form="+.3f",
    )
    ndcg_at_10: Estimate | None = column("nDCG@10 of held-out queries.", title="nDCG@10")
    ndcg_change: Comparison | None = column(
        "Change in nDCG@10 from the plain model.", title="nDCG@10 change", form="+.3f"
    )
    harmonic_mean: Estimate | None = column(f"{HARMONIC[:-1]}{TRAINED}")
    harmonic_mean_change: Comparison | None = column(
        "Change in the harmonic mean from the plain model.", form="+.3f"
    )
    psi: float | None = column(f"{PSI[:-1]}{TRAINED}", title="PSI")
    psi_under_permutation: float | None = column(
        f"{PERMUTED[:-1]}{TRAINED}", title="PSI under permutation"
    )
    psi_p: float | None = column(f"{P[:-1]}{TRAINED}", shown=False)
    psi_change: Comparison | None = column(
        "Change in PSI from the plain model.", title="PSI change", form="+.3f"
    )
    unretrieved: Estimate | None = column(
        "Share of the sentences of held-out documents that do not retrieve their document; null "
        "with calibration or without training.",
        form=PERCENT,
    )
    unretrieved_change: Comparison | None = column(
        "Change in the share of unretrieved sentences from the plain model.",
        form=PERCENTAGE_POINTS,
    )
    saliency_index: Estimate | None = column(
        "Primacy-recency index of the mean saliency curve of held-out pairs, -1 (first third) to 1 "
        "(last third).",
        form="+.3f",
    )
    saliency_change: Comparison | None = column(
        "Change in the index from the plain model; not part of the recommendation.",
        title="saliency index change",
        form="+.3f",
    )
    strength: float = column("Calibration strength, 0 (no calibration) to 1.", shown=False)
    block: int | None = column("Number of tokens per block; null without calibration.", shown=False)
    layers: str | None = column(
        "half, or the number of last layers; null without calibration.", shown=False
    )
    steps: int | None = column("Number of training steps; null without training.")
    on_front: bool | None = column(
        "Whether no other model has both less position bias and more nDCG@10; null if one of the "
        "two was not measured.",
        title="on Pareto front",
    )
    recommended: bool = column("Whether this model is recommended.")


@dataclass(frozen=True)
class SelectionRow(ModelRow):
    """The calibration setting selected on half of the documents, tested on the other half."""

    tested: str = column("The version with the highest harmonic mean on the selection half.")
    recommended: bool = column("Whether the tested version is recommended over the model.")
    queries_selected_on: int = column("Number of queries of the selection half.")
    queries: int = column("Number of held-out queries.")
    before: float = column("The model's nDCG@10 on the held-out queries.", title="nDCG@10 before")
    after: float = column("The tested version's nDCG@10 on them.", title="nDCG@10 after")
    change: Comparison | None = column(
        "After minus before; null if the model itself is tested.",
        title="nDCG@10 change",
        form="+.3f",
    )
    harmonic_before: float = column(HARMONIC, title="harmonic mean before")
    harmonic_after: float = column(
        "Harmonic mean of the tested version.", title="harmonic mean after"
    )
    harmonic_change: Comparison | None = column(
        "After minus before.", title="harmonic mean change", form="+.3f"
    )
    psi_before: float | None = column(PSI, title="PSI before")
    psi_after: float | None = column("PSI of the tested version.", title="PSI after")
    psi_change: Comparison | None = column("After minus before.", title="PSI change", form="+.3f")


@dataclass(frozen=True)
class ChangedQueryRow:
    """A query before and after a change to the model."""

    model: str = column("Name of the changed model.", shown=False)
    query: str = column("The query.")
    before: float = column("nDCG@10 of the plain model, 0 to 1.")
    after: float = column("nDCG@10 of the changed model, 0 to 1.")
    change: float = column("After minus before, -1 to 1.", form="+.3f")
    rank_before: int | None = column("Rank of the first relevant document; null if none.")
    rank_after: int | None = column("Rank of that document with the changed model.")
    position: float | None = column(
        "Midpoint of the evidence, 0 to 1 of the document's characters; null if it is unknown.",
        title="evidence position",
        form=".0%",
    )
    half: str = column("Half of the data set: selection or held out.")
    id: str = column("Id of the query.")
    pair: str = column("Id of a pair with this query, or empty.", shown=False)


@dataclass(frozen=True)
class TrainingCheckRow:
    """A check on validation texts during training."""

    model: str = column("Name of the debiased model.")
    step: int = column("Number of training steps so far.")
    loss: float = column("Mean loss since the previous check.", form=".4f")
    position_effect: Estimate | None = column(
        "Mean cosine of a validation text with its sentences in the last third minus with those in "
        "the first.",
        form="+.4f",
    )


def _point_rows(summary: DebiasSummary) -> Iterable[DebiasRow]:
    changes, calibration = summary.changes, summary.point.calibration
    ranking = summary.ranking
    yield DebiasRow(
        summary.name,
        summary.point.kind,
        summary.effect,
        changes.effect,
        summary.rank_effect,
        changes.rank_effect,
        summary.quality,
        changes.quality,
        ranking.harmonic if ranking else None,
        changes.harmonic,
        ranking.psi if ranking else None,
        ranking.psi_under_permutation if ranking else None,
        ranking.p if ranking else None,
        changes.psi,
        summary.share,
        changes.share,
        summary.saliency_index,
        changes.saliency_index,
        calibration.strength if calibration else 0.0,
        calibration.block if calibration else None,
        str(calibration.layers or HALF) if calibration else None,
        summary.manifest.steps if summary.manifest else None,
        summary.on_front,
        summary.recommended,
    )


def _check_rows(summary: DebiasSummary) -> Iterable[TrainingCheckRow]:
    if summary.manifest is not None and summary.point.calibration is None:
        for step, loss, effect in summary.manifest.checks:
            yield TrainingCheckRow(summary.name, step, loss, effect)


def _selection_rows(summary: DebiasSummary) -> Iterable[SelectionRow]:
    test = summary.test
    if test is None or summary.plain is not None:
        return
    changes, before, after = test.changes, test.before, test.after
    yield SelectionRow(
        summary.name,
        test.name,
        test.recommendation is not None and test.recommendation.recommended,
        len(test.selected_on),
        before.n,
        before.mean.value,
        after.mean.value,
        changes.quality,
        before.harmonic.value,
        after.harmonic.value,
        changes.harmonic,
        before.psi,
        after.psi,
        changes.psi,
    )


def _query_rows(summary: DebiasSummary) -> Iterable[ChangedQueryRow]:
    """The queries of a changed model, those that changed most first."""
    plain = summary.plain
    if plain is None or plain.ranked is None or summary.ranked is None:
        return
    before, after = (each.evaluation.per_query[NDCG] for each in (plain.ranked, summary.ranked))
    selected_on = summary.test.selected_on if summary.test else frozenset[str]()
    rows = [
        ChangedQueryRow(
            summary.name,
            query.text,
            float(before[number]),
            float(after[number]),
            float(after[number] - before[number]),
            first_rank(plain.ranked, query),
            first_rank(summary.ranked, query),
            query.evidence,
            "selection" if query.query_id in selected_on else "held out",
            query.query_id,
            next(iter(query.pairs.values()), ""),
        )
        for number, query in enumerate(summary.ranked.setup.queries)
    ]
    yield from sorted(rows, key=lambda row: -abs(row.change))


TABLES = {
    "points": Table(DebiasRow, _point_rows),
    "selection": Table(SelectionRow, _selection_rows, title="Test of the selected setting"),
    "checks": Table(TrainingCheckRow, _check_rows, title="Position effect during training"),
    "queries": Table(ChangedQueryRow, _query_rows, title="Change of each query", on_page=False),
}
