"""The rows of the command `compare`."""

from __future__ import annotations

from dataclasses import dataclass

from poslens.rows import column


@dataclass(frozen=True)
class ComparisonRow:
    """A model's numbers for one pair."""

    model: str = column("Name of the model.")
    score: float = column("Score of the pair, in the model's units.")
    center_of_mass: float | None = column(
        "Center of mass of the attribution, 0 to 1; null if every attribution is zero."
    )
    primacy_recency_index: float | None = column(
        "Primacy-recency index, from -1 (all in the first third) to 1 (all in the last); null if "
        "every attribution is zero."
    )
    tokens_read: int = column(
        "Tokens of the document within the context limit, including special tokens."
    )
    tokens: int = column("Tokens of the whole document.")
    score_difference: float | None = column(
        "Score minus the first model's; null for the first model."
    )
    index_difference: float | None = column(
        "Index minus the first model's; null for the first model."
    )
    rank_correlation: float | None = column(
        "Spearman's rank correlation with the first model over words, -1 to 1; null for the first "
        "model."
    )
    curves_apart: float | None = column(
        "Total variation distance from the first model's curve, 0 (equal) to 1; null for the first "
        "model."
    )
