"""The table of several models on one pair."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import document_magnitudes, rank_correlation
from poslens.attribution.methods import METHODS
from poslens.compute.compute import Explained
from poslens.compute.orders import apart
from poslens.studies.explain.service import pair_numbers, word_scores


def comparison_frame(results: Sequence[Explained]) -> pd.DataFrame:
    """One row per model, in the given order.

    Columns: model; score; center_of_mass and primacy_recency_index of the document, missing if
    every attribution is zero; tokens_read and tokens of the document, including special tokens.
    The others compare with the first model and are missing for it: score_difference and
    index_difference (this model minus the first), rank_correlation (Spearman's, over the words that
    both models read, with the method's aggregation of tokens) and curves_apart (total variation
    distance of the two curves, 0 to 1).
    """
    first = results[0]
    scores = word_scores(results, METHODS[first.attribution.method.name].aggregate)
    magnitudes = [document_magnitudes(result.attribution) for result in results]
    numbers = [[_value(pair_number) for pair_number in pair_numbers(result)] for result in results]
    rows = []
    for at, explained in enumerate(results):
        attribution, (mass, index) = explained.attribution, numbers[at]
        row: dict[str, object] = {
            "model": explained.model.spec.name,
            "score": attribution.score,
            "center_of_mass": mass,
            "primacy_recency_index": index,
            "tokens_read": len(attribution.document),
            "tokens": attribution.document.n_tokens_full,
            "score_difference": None,
            "index_difference": None,
            "rank_correlation": None,
            "curves_apart": None,
        }
        if at:
            base = numbers[0][1]
            row |= {
                "score_difference": attribution.score - first.attribution.score,
                "index_difference": None if index is None or base is None else index - base,
                "rank_correlation": rank_correlation(scores[0], scores[at]),
                "curves_apart": float(apart(magnitudes[0][None], magnitudes[at][None])[0]),
            }
        rows.append(row)
    frame = pd.DataFrame(rows)
    numeric = frame.columns.drop("model")
    return frame.astype(dict.fromkeys(numeric.drop(["tokens_read", "tokens"]), float))


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
