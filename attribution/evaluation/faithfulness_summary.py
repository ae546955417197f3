"""Faithfulness tests averaged over the pairs of a data set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.bootstrap import Estimate, estimate, intervals
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import ErasureParameters, Faithfulness
from poslens.attribution.types import Array, Method, as_array


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """Scaled scores [F] averaged over pairs, with the bootstrap interval of the mean over
    documents; none below MIN_DOCUMENTS."""

    mean: Array
    low: Array | None
    high: Array | None


@dataclass(frozen=True, slots=True)
class FaithfulnessSummary:
    """Means over `n` pairs of `n_documents` documents, with 95% bootstrap intervals over documents.

    Excluded are `n_equal` pairs whose whole and empty documents have the same score, and `n_below`
    pairs whose whole document scores lower (see `Faithfulness.gap`). `*_gain` are differences from
    random orders, positive is better. `enrichment` is over the pairs whose evidence was read,
    None without any. `seconds` is the time of a pair's attribution, without this test.

    Curves are scaled scores at `parameters.fractions`; those of documents with few units are
    interpolated.
    """

    model: str
    method: Method
    parameters: ErasureParameters
    n: int
    n_documents: int
    n_equal: int
    n_below: int
    n_truncated: int
    deletion_area: Estimate
    insertion_area: Estimate
    comprehensiveness: Estimate
    sufficiency: Estimate
    deletion_gain: Estimate
    insertion_gain: Estimate
    comprehensiveness_gain: Estimate
    sufficiency_gain: Estimate
    enrichment: Estimate | None
    seconds: Estimate
    deletion: MeanCurve
    insertion: MeanCurve
    random_deletion: MeanCurve
    random_insertion: MeanCurve


def summarize(results: Sequence[Faithfulness], groups: Sequence[Hashable]) -> FaithfulnessSummary:
    """Average the results of one model, method and choice of parameters (bootstrap seeded).
    `groups` are the results' documents.

    Raises:
        UserError: no pair's document scores more than an empty one.
        ValueError: no results, or results of several models, methods or parameters.
    """
    if len({(r.model, r.method.core, r.parameters) for r in results}) != 1:
        raise ValueError("no results, or results of several models, methods or parameters")
    gaps = [result.gap for result in results]
    included = [
        (result, group)
        for result, gap, group in zip(results, gaps, groups, strict=True)
        if gap is not None and gap > 0
    ]
    if not included:
        equal, below = sum(gap is None for gap in gaps), sum(gap is not None for gap in gaps)
        raise UserError(
            f"{results[0].model}: no document scores higher than the empty document ({equal} score "
            f"the same, {below} score lower): choose pairs whose documents answer their queries."
        )
    used, documents = [result for result, _ in included], [group for _, group in included]
    grid = np.array(used[0].parameters.fractions)
    values = np.array([_numbers(result) for result in used])
    marked = [(r.enrichment, group) for r, group in included if r.enrichment is not None]

    def mean_curve(of: Callable[[Faithfulness], Array]) -> MeanCurve:
        rows = np.array([np.interp(grid, r.removed, r.scaled(of(r))) for r in used])
        ends = intervals(rows, documents)
        low, high = (None, None) if ends is None else (_curve(end) for end in ends)
        return MeanCurve(_curve(rows.mean(0)), low, high)

    return FaithfulnessSummary(
        model=used[0].model,
        method=used[0].method,
        parameters=used[0].parameters,
        n=len(used),
        n_documents=len(set(documents)),
        n_equal=sum(gap is None for gap in gaps),
        n_below=sum(gap is not None and gap < 0 for gap in gaps),
        n_truncated=sum(result.truncated for result in used),
        **{name: _mean(values[:, k], documents) for k, name in enumerate(_NUMBERS)},
        enrichment=_mean([value for value, _ in marked], [group for _, group in marked])
        if marked
        else None,
        deletion=mean_curve(lambda r: r.deletion),
        insertion=mean_curve(lambda r: r.insertion),
        random_deletion=mean_curve(lambda r: r.random_orders.deletion.mean(0)),
        random_insertion=mean_curve(lambda r: r.random_orders.insertion.mean(0)),
    )


_NUMBERS = tuple(
    "deletion_area insertion_area comprehensiveness sufficiency deletion_gain "
    "insertion_gain comprehensiveness_gain sufficiency_gain seconds".split()
)


def _numbers(result: Faithfulness) -> list[float]:
    """A pair's `_NUMBERS`."""
    measures, gain = result.measures, result.gain
    assert measures is not None and gain is not None
    return [*astuple(measures), *astuple(gain), result.attribution_seconds]


def _mean(values: ArrayLike, groups: Sequence[Hashable]) -> Estimate:
    interval = estimate(np.asarray(values, dtype=np.float64)[:, None], groups)
    assert interval is not None  # there are values, and they are finite
    return interval


def _curve(values: NDArray[np.float64]) -> Array:
    return as_array(values, (None,), "a curve")
