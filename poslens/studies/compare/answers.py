"""What `compare` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Model


class ComparisonRow(TypedDict):
    """A model's numbers of one pair."""

    model: Model
    score: Annotated[float, "The model's score of the pair, in its own units."]
    center_of_mass: Annotated[
        float | None, "Mean position of the attribution, 0 to 1; null where all is zero."
    ]
    primacy_recency_index: Annotated[
        float | None, "-1 (all in the first third) to 1 (in the last); null where all is zero."
    ]
    tokens_read: Annotated[int, "Tokens of the document that were read, special ones included."]
    tokens: Annotated[int, "Tokens of the whole document."]
    score_difference: Annotated[float | None, "Score minus the first model's; null for the first."]
    index_difference: Annotated[float | None, "Index minus the first model's; null for the first."]
    rank_correlation: Annotated[
        float | None, "Spearman's with the first model over words, -1 to 1; null of the first."
    ]
    curves_apart: Annotated[
        float | None, "How far from the first model's curve, 0 (alike) to 1; null of the first."
    ]
