"""What mean curves of two models are compared by."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.types import TextPair
from poslens.compute.compute import DataSetCurve
from poslens.paired import MeasuredModel, index_measure


def measured_curve(curve: DataSetCurve, pairs: Sequence[TextPair]) -> MeasuredModel:
    """The primacy-recency index of a mean curve over `pairs`, by pair."""
    documents = {pair.pair_id: pair.document for pair in pairs}
    return MeasuredModel(curve.model.spec.name, [index_measure(curve.stored, documents)])
