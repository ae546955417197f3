"""The tables of the study `debias`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import Comparison
from poslens.rows import Table, column
from poslens.studies.debias.summary import NO_CHANGES, DebiasSummary


@dataclass(frozen=True)
class DebiasRow:
    """A model of the comparison, evaluated on the held-out half."""

    model: str = column("Name of the model.")
    kind: str = column("plain, debiased, calibrated, or debiased and calibrated.")
    relocation_difference: Estimate | None = column(
        "Mean score with the evidence in the last third minus that with it in the first.",
        form="+.4f",
    )
    size_change: Comparison | None = column(
        "Change of the relocation difference's size against the plain model; negative is less "
        "position bias.",
        form="+.4f",
    )
    rank_effect: Estimate | None = column(
        "Position effect on rank: nDCG@10 with the evidence first minus that with it last, of "
        "held-out pairs.",
        title="position effect on rank",
        form="+.3f",
    )
    rank_effect_change: Comparison | None = column(
        "Change of its size against the plain model.", title="change of its size", form="+.3f"
    )
    ndcg_at_10: Estimate | None = column("nDCG@10 of held-out queries.", title="nDCG@10")
    ndcg_change: Comparison | None = column(
        "Its change against the plain model.", title="nDCG@10 change", form="+.3f"
    )
    unretrieved: Estimate | None = column(
        "Share of the sentences of held-out documents that do not retrieve their document; null "
        "with calibration."
    )
    unretrieved_change: Comparison | None = column(
        "Mean over documents of its change against the plain model.", form="+.3f"
    )
    saliency_index: Estimate | None = column(
        "Primacy-recency index of the mean saliency curve of held-out pairs, -1 (first third) to 1 "
        "(last third).",
        form="+.3f",
    )
    saliency_change: Comparison | None = column(
        "Its change against the plain model; no part of the recommendation.",
        title="saliency index change",
        form="+.3f",
    )
    steps: int | None = column("Steps of training; null without any.")
    on_front: bool = column("Whether no other model has both less position bias and more nDCG@10.")
    recommended: bool = column("Whether it is the recommended one.")


@dataclass(frozen=True)
class TrainingCheckRow:
    """A check on validation texts during training."""

    model: str = column("Name of the debiased model.")
    step: int = column("Steps of training so far.")
    loss: float = column("Mean loss since the check before.", form=".4f")
    position_effect: str = column(
        "Cosine of a text with its sentences in the last third minus that with those in the first."
    )


def _point_rows(summary: DebiasSummary) -> Iterable[DebiasRow]:
    changes = summary.changes or NO_CHANGES
    yield DebiasRow(
        summary.name,
        summary.point.kind,
        summary.effect,
        changes.effect,
        summary.rank_effect,
        changes.rank_effect,
        summary.quality,
        changes.quality,
        summary.share,
        changes.share,
        summary.saliency_index,
        changes.saliency,
        summary.manifest.steps if summary.manifest else None,
        summary.on_front,
        summary.recommended,
    )


def _check_rows(summary: DebiasSummary) -> Iterable[TrainingCheckRow]:
    if summary.manifest is not None and summary.point.calibration is None:
        for step, loss, effect in summary.manifest.checks:
            yield TrainingCheckRow(summary.name, step, loss, effect)


TABLES = {
    "points": Table(DebiasRow, _point_rows),
    "checks": Table(TrainingCheckRow, _check_rows, title="Position effect during training"),
}
