"""Paired comparison of models on the Cause page, by differences between last and first third."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poslens.attribution.evaluation.comparison import DEVIATIONS_MARGIN, SCORE_MARGIN
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute.compute import Compute
from poslens.paired import ItemMeasure, MeasuredModel, PairedDifference, paired_differences
from poslens.studies.cause.service import last_minus_first, stored

IN_DEVIATIONS = (
    "Each model's scores are divided by their standard deviation, because models have different "
    f"scales; two models are equivalent within {DEVIATIONS_MARGIN:g}."
)

TITLES = {"relocation": "relocation difference", "ablation": "last minus first, ablation"}


def cause_differences(
    compute: Compute,
    specs: Sequence[RetrieverSpec],
    methods: Sequence[Method],
    pairs: Sequence[TextPair],
) -> list[PairedDifference]:
    """Paired differences between models in the last-minus-first difference of each intervention;
    none for a single model. Differences of scores are in standard deviations of each model's scores
    of the unchanged documents, because models have different scales; cosines are not scaled."""
    if len(specs) < 2:
        return []
    return paired_differences(
        [
            MeasuredModel(
                spec.name, [cause_measure(compute, spec, method, pairs) for method in methods]
            )
            for spec in specs
        ]
    )


def cause_measure(
    compute: Compute, spec: RetrieverSpec, method: Method, pairs: Sequence[TextPair]
) -> ItemMeasure:
    """The last-minus-first difference of one intervention by pair, from stored results; scaled as
    in `cause_differences`."""
    results = stored(compute, spec, method, pairs).results
    differences = {
        pair_id: value
        for pair_id, result in results.items()
        if (value := last_minus_first(result)) is not None
    }
    scale, margin = 1.0, SCORE_MARGIN
    if method.name in TITLES:
        scores = [
            result.original if isinstance(result, Relocation) else result.score
            for result in results.values()
        ]
        scale, margin = float(np.std(scores)) or 1.0, DEVIATIONS_MARGIN
    order = method.params.get("order")
    title = TITLES.get(method.name) or f"last minus first, {order or method.name}"
    documents = {pair.pair_id: pair.document for pair in pairs}
    return ItemMeasure(
        title,
        "pairs" if method.name in TITLES else "documents",
        margin,
        {pair_id: np.array([value / scale]) for pair_id, value in differences.items()},
        {pair_id: documents[pair_id] for pair_id in differences},
    )
