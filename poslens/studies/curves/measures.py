"""Paired comparison of models by their mean curves."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.types import TextPair
from poslens.cache.columns import columns_of
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import DataSetCurve
from poslens.paired import MeasuredModel, PairedDifference, index_measure, paired_differences

# Pages need the differences at every rerun.
_differences: LRUCache[list[PairedDifference]] = LRUCache(32)


def curve_differences(
    curves: Sequence[DataSetCurve], pairs: Sequence[TextPair]
) -> list[PairedDifference]:
    """Paired differences between the primacy-recency indices of mean curves over `pairs`; none for
    a single curve."""
    if len(curves) < 2:
        return []

    def compared() -> list[PairedDifference]:
        columns = columns_of(pairs)
        documents = dict(zip(columns.ids.tolist(), columns.documents.tolist(), strict=True))
        return paired_differences(
            [
                MeasuredModel(curve.model.spec.name, [index_measure(curve.stored, documents)])
                for curve in curves
            ]
        )

    return _differences.get(tuple(curve.content for curve in curves), compared)
