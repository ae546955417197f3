"""The comparison of several models on one pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poslens.attribution.curves.positions import document_magnitudes, rank_correlation
from poslens.attribution.methods import METHODS
from poslens.compute.compute import Explained
from poslens.compute.orders import apart
from poslens.studies.compare.answers import ComparisonRow
from poslens.studies.explain.service import pair_numbers, word_scores


def comparison_rows(results: Sequence[Explained]) -> Iterator[ComparisonRow]:
    """One row per model, in the given order; each is compared with the first. Rank correlations are
    over the words that both models read, with the method's aggregation of tokens."""
    first = results[0]
    scores = word_scores(results, METHODS[first.attribution.method.name].aggregate)
    magnitudes = [document_magnitudes(result.attribution) for result in results]
    numbers = [
        [None if number is None else number.value for number in pair_numbers(result)]
        for result in results
    ]
    base = numbers[0][1]
    for at, explained in enumerate(results):
        attribution, (mass, index) = explained.attribution, numbers[at]
        difference = None if index is None or base is None else index - base
        yield ComparisonRow(
            explained.model.spec.name,
            attribution.score,
            mass,
            index,
            len(attribution.document),
            attribution.document.n_tokens_full,
            attribution.score - first.attribution.score if at else None,
            difference if at else None,
            rank_correlation(scores[0], scores[at]) if at else None,
            float(apart(magnitudes[0][None], magnitudes[at][None])[0]) if at else None,
        )
