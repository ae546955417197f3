"""The tables of the study `preferences`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.preferences import STRENGTHS
from poslens.rows import Table, column

if TYPE_CHECKING:
    from poslens.studies.preferences.study import PreferenceSummary


@dataclass(frozen=True)
class PreferenceRow:
    """The preference of one method."""

    method: str = column("Name of the method.")
    documents: int = column("Number of distinct documents.")
    order_blind: Estimate = column(
        "Primacy-recency index on the order-blind encoder, -1 to 1; 0 is expected.",
        title="method preference",
        form="+.3f",
    )
    slope: Estimate | None = column(
        "Change of the index per unit of planted strength; null if only the order-blind encoder "
        "was measured.",
        form="+.3f",
    )
    rank_correlation: Estimate | None = column(
        "Spearman correlation of the index with the strength; null if all indices are equal.",
        form="+.2f",
    )
    primacy_from: float | None = column(
        "Detection limit: smallest strength of the primacy adapter, 0 to 1, from which the "
        "difference of the index from the order-blind one excludes 0; null if not detected.",
        form="g",
    )
    recency_from: float | None = column(
        "The same for the recency adapter; null if not detected.", form="g"
    )
    query_free: Estimate | None = column(
        "Difference between the adapters' indices under an unrelated query, divided by that under "
        "the pair's own; null if the method does not tell the adapters apart.",
        form=".2f",
    )


@dataclass(frozen=True)
class StrengthRow:
    """A method's index at one strength of the planted bias."""

    method: str = column("Name of the method.")
    strength: float = column(
        "Strength of the planted bias: negative primacy, 0 none, positive recency.", form="+g"
    )
    index: Estimate = column("Primacy-recency index, -1 to 1.", form="+.3f")


def preference_rows(summary: PreferenceSummary) -> list[PreferenceRow]:
    """One row per method."""
    preference, planted = summary.preference, summary.preference.planted
    own = (preference.method.name, preference.n_documents, preference.order_blind)
    if planted is None:
        return [PreferenceRow(*own, None, None, None, None, None)]
    slope, correlation = planted.slope, planted.rank_correlation
    detected = (planted.primacy, planted.recency)
    return [PreferenceRow(*own, slope, correlation, *detected, planted.query_free)]


def strength_rows(summary: PreferenceSummary) -> list[StrengthRow]:
    """One row per strength."""
    name, planted = summary.preference.method.name, summary.preference.planted
    if planted is None:
        return []
    indices = zip(STRENGTHS, planted.indices, strict=True)
    return [StrengthRow(name, strength, index) for strength, index in indices]


TABLES = {
    "methods": Table(PreferenceRow, preference_rows),
    "strengths": Table(StrengthRow, strength_rows, "Index by strength of the planted bias"),
}
