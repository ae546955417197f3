"""The JSON shape of the command `compare`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Model


class ComparisonRow(TypedDict):
    """A model's numbers for one pair."""

    model: Model
    score: Annotated[float, "Score of the pair, in the model's units."]
    center_of_mass: Annotated[
        float | None,
        ("Center of mass of the attribution, 0 to 1; null if every attribution is zero."),
    ]
    primacy_recency_index: Annotated[
        float | None,
        (
            "Primacy-recency index, from -1 (all in the first third) to 1 (all in the last); "
            "null if every attribution is zero."
        ),
    ]
    tokens_read: Annotated[
        int, ("Tokens of the document within the context limit, including special tokens.")
    ]
    tokens: Annotated[int, "Tokens of the whole document."]
    score_difference: Annotated[
        float | None, ("Score minus the first model's; null for the first model.")
    ]
    index_difference: Annotated[
        float | None, ("Index minus the first model's; null for the first model.")
    ]
    rank_correlation: Annotated[
        float | None,
        (
            "Spearman's rank correlation with the first model over words, -1 to 1; null for the "
            "first model."
        ),
    ]
    curves_apart: Annotated[
        float | None,
        (
            "Total variation distance from the first model's curve, 0 (equal) to 1; null for "
            "the first model."
        ),
    ]
