"""The Python function `poslens.curve`."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from poslens.arguments import (
    Model,
    Models,
    Option,
    chosen_pairs,
    data_set,
    method_of,
    run_job,
    specs_of,
)
from poslens.attribution.datasets import SAMPLE
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import service
from poslens.quietly import quietly
from poslens.results import ByModel, Curve


@overload
def curve(
    model: Model,
    dataset: str | Path = SAMPLE,
    *,
    method: str = "saliency",
    pairs: int = 0,
    **options: Option,
) -> Curve: ...
@overload
def curve(
    model: Models,
    dataset: str | Path = SAMPLE,
    *,
    method: str = "saliency",
    pairs: int = 0,
    **options: Option,
) -> ByModel: ...
@quietly()
def curve(
    model: Model | Models,
    dataset: str | Path = SAMPLE,
    *,
    method: str = "saliency",
    pairs: int = 0,
    **options: Option,
) -> Curve | ByModel:
    """A method's mean curve over a data set; for several models, a dictionary of curves by model
    name. Missing results are computed and stored, with a progress bar on stderr. Repeat an
    interrupted call to resume.

    Args:
        model: as in `explain`, or a list of models.
        pairs: number of pairs, spread evenly over the data set; 0 means all.

    Raises:
        UserError: an argument is invalid as in `explain`, or nothing could be computed.
    """
    data, how, compute = data_set(dataset), method_of(method, options), service()
    chosen, words = chosen_pairs(data.pairs, pairs)

    def averaged(spec: RetrieverSpec) -> Curve:
        run_job(compute.attribution_job(spec, how, chosen, f"{data.name}: {words}"))
        average = compute.curve(spec, how, chosen, data.name, words)
        summary = average.summary
        numbers = {
            "primacy_recency_index": summary.primacy_recency_index,
            "center_of_mass": summary.center_of_mass,
        }
        return Curve(summary.curve, numbers, average.provenance())

    curves = {spec.name: averaged(spec) for spec in specs_of(model, data)}
    return ByModel(curves) if isinstance(model, list | tuple) else next(iter(curves.values()))
