"""Python functions of `poslens` that average over a data set: curve and cause."""

from __future__ import annotations

from collections.abc import Callable
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
from poslens.attribution.datasets import SAMPLE, DataSet
from poslens.attribution.interventions.ablation import Replacement
from poslens.attribution.interventions.segments import EDITS, require_vector
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import service
from poslens.quietly import quietly
from poslens.results import ByModel, Curve
from poslens.studies.cause import service as interventions
from poslens.studies.cause.figures import COSINE, QUANTITIES


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

    return _each(model, data, averaged)


@overload
def cause(
    model: Model,
    dataset: str | Path = SAMPLE,
    *,
    intervention: str = "relocation",
    by: Replacement = "delete",
    pairs: int = interventions.DEFAULT_PAIRS,
) -> Curve: ...
@overload
def cause(
    model: Models,
    dataset: str | Path = SAMPLE,
    *,
    intervention: str = "relocation",
    by: Replacement = "delete",
    pairs: int = interventions.DEFAULT_PAIRS,
) -> ByModel: ...
@quietly()
def cause(
    model: Model | Models,
    dataset: str | Path = SAMPLE,
    *,
    intervention: str = "relocation",
    by: Replacement = "delete",
    pairs: int = interventions.DEFAULT_PAIRS,
) -> Curve | ByModel:
    """The mean effect of an intervention on the score as a function of position, which shows
    whether position itself changes the score. For several models, a dictionary by model name.

    `last_minus_first` is the mean of the curve's last third minus that of its first. Relocation
    also has `lost`, the decrease of the score when the evidence is past the context limit.

    Args:
        model: as in `curve`.
        intervention: "relocation" moves the evidence within its own text, "ablation" removes parts
            of it. For documents without queries, "segments", "shuffled" and "thirds" compare a
            part's vector with that of the whole text.
        by: how ablation removes parts: "delete", "mask" or "filler".
        pairs: number of pairs or documents, spread evenly over the data set; 0 means all.

    Raises:
        UserError: an argument is invalid as in `explain`, or no pair has evidence that can be
            moved.
    """
    data, compute = data_set(dataset), service()
    how = interventions.named(intervention, by, without=EDITS)  # these have no curve
    usable, _ = interventions.usable(how, data)
    of_pairs = interventions.is_of_pairs(how)
    chosen, words = chosen_pairs(usable, pairs, "pairs" if of_pairs else "documents")

    def averaged(spec: RetrieverSpec) -> Curve:
        if not of_pairs:
            require_vector(spec)
        run_job(interventions.job(compute, spec, how, chosen, f"{data.name}: {words}"))
        average = interventions.data_set_cause(compute, spec, how, chosen, data.name, words)
        numbers = {"last_minus_first": average.last_minus_first}
        if intervention == "relocation":
            numbers["lost"] = average.lost
        quantity = QUANTITIES.get(how.name, COSINE)
        return Curve(average.summary.curve, numbers, average.provenance(), quantity)

    return _each(model, data, averaged)


def _each(
    model: Model | Models, data: DataSet, averaged: Callable[[RetrieverSpec], Curve]
) -> Curve | ByModel:
    """The curve of one model, or a dictionary of curves if several are given."""
    curves = {spec.name: averaged(spec) for spec in specs_of(model, data)}
    return ByModel(curves) if isinstance(model, list | tuple) else next(iter(curves.values()))
