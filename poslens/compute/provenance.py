"""Creates the provenance of every result.

The number of pairs, the number of truncated documents and the context limit come from the result,
not from the caller. What a result does not contain is omitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Estimate
from poslens.attribution.curves.positions import BANDS
from poslens.attribution.curves.positions import band as band_of
from poslens.attribution.interventions.displacement import Displacement
from poslens.attribution.interventions.null_controls import CONTROLS, Control
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import MAX_CHARACTERS, listed
from poslens.attribution.types import Attribution, Method, PositionCurve, Provenance, TextPair
from poslens.cache.shipped.preferences import short_verdict
from poslens.cache.storage.store import ModelKey
from poslens.compute.dataset_files import dataset_digest
from poslens.version import __version__

if TYPE_CHECKING:  # importing these at run time would also import scipy.stats and ir_measures
    from poslens.attribution.curves.published import PublishedCurves
    from poslens.attribution.evaluation.faithfulness import Faithfulness
    from poslens.attribution.evaluation.faithfulness_summary import FaithfulnessSummary
    from poslens.attribution.evaluation.ranking_measures import Evaluation
    from poslens.attribution.evaluation.trec_runs import TrecRun
    from poslens.attribution.interventions.ablation import Ablation
    from poslens.attribution.interventions.null_controls import ControlledCurve
    from poslens.attribution.interventions.relocation import Relocation


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A retriever's identity, for store keys and captions, known without loading it. With
    `stored_only` its weights are not on this machine, and the identity describes how its stored
    results were computed."""

    spec: RetrieverSpec
    key: ModelKey
    weights: str
    precision: str
    device: str
    stored_only: bool = False


def of_attribution(model: ModelIdentity, pair: TextPair, attribution: Attribution) -> Provenance:
    """Provenance of one pair's attribution."""
    document = attribution.document
    # The largest accepted text length is not a limit of the model.
    limit = document.max_length if document.max_length < MAX_CHARACTERS else None
    provenance = _of_pair(model, pair, attribution.method, document.truncated)
    preference = short_verdict(attribution.method, model.spec)
    return replace(provenance, max_length=limit, method_preference=preference)


def precision_of(model: ModelIdentity) -> str:
    """The precision of the model; empty if it consists of word statistics."""
    return "" if family_of(model.spec).has_statistics else model.precision


def with_interval(provenance: Provenance, number: Estimate) -> Provenance:
    """The provenance with the items that were resampled for this number's interval."""
    return replace(provenance, interval=_resampled(number))


def with_control(provenance: Provenance, kind: Control) -> Provenance:
    """The provenance with the null control that was subtracted."""
    return replace(provenance, control=f"{CONTROLS[kind]}, subtracted")


def negated(provenance: Provenance) -> Provenance:
    """The provenance of a contrast's second document, whose shares have the opposite sign."""
    units = filter(None, (provenance.units, "shares negated, for s(d1) − s(d2)"))
    return replace(provenance, units="; ".join(units))


def of_intervention(
    model: ModelIdentity,
    pair: TextPair,
    method: Method,
    effect: Relocation | Ablation | Displacement,
) -> Provenance:
    """Provenance of an intervention on one pair."""
    if isinstance(effect, Displacement):
        # A prefix can push the text's end past the context limit, so only 0 tokens count.
        whole = [
            read for tokens, read in zip(effect.tokens, effect.read, strict=True) if not tokens
        ]
        cut = float(whole[0]) < 1 if whole else None
    else:
        cut = effect.read_share < 1
    return _of_pair(model, pair, method, cut)


def of_faithfulness(model: ModelIdentity, pair: TextPair, faithfulness: Faithfulness) -> Provenance:
    """Provenance of a faithfulness test of one pair."""
    method = f"{faithfulness.parameters!r} of {faithfulness.method!r}"
    provenance = _of_pair(model, pair, method, faithfulness.truncated)
    return replace(provenance, units=removed_units(faithfulness))


def _of_pair(
    model: ModelIdentity, pair: TextPair, method: Method | str, cut: bool | None
) -> Provenance:
    return of_model(
        model,
        method,
        pair.dataset,
        truncated=None if cut is None else int(cut),
        selection=f"pair {pair.pair_id}",
    )


def of_curve(
    model: ModelIdentity, position_curve: PositionCurve, selection: str, band: str = BANDS[0]
) -> Provenance:
    """Provenance of a curve averaged over pairs of a data set, or over documents alone, or of a
    figure of it with a band of this kind (see `BANDS`)."""
    # Segments are compared with their own text, so there is no query.
    alone = position_curve.method.name in ("segments", "thirds")
    interval = "" if position_curve.ci_low is None else resampling(position_curve.n_documents)
    provenance = of_model(
        model,
        position_curve.method,
        position_curve.dataset,
        n_pairs=None if alone else position_curve.n,
        n_documents=position_curve.n_documents,
        truncated=position_curve.n_truncated,
        selection=selection,
        interval=interval if band == BANDS[0] else "",
        preference=short_verdict(position_curve.method, model.spec),
    )
    if band == BANDS[0] or band_of(position_curve, band) is None:
        return provenance
    return replace(provenance, band=f"{band} over {'documents' if alone else 'pairs'}")


def of_documents(
    model: ModelIdentity, method: Method, dataset: str, n: int, n_truncated: int, selection: str
) -> Provenance:
    """Provenance of a number about documents alone, averaged over `n` of them."""
    return of_model(
        model,
        method,
        dataset,
        n_documents=n,
        truncated=n_truncated,
        selection=selection,
        interval=resampling(n) if n >= MIN_DOCUMENTS else "",
    )


def of_controlled(
    model: ModelIdentity, method: Method, dataset: str, controlled: ControlledCurve, selection: str
) -> Provenance:
    """Provenance of curves minus a null control."""
    provenance = of_model(
        model,
        method,
        dataset,
        n_pairs=controlled.n,
        n_documents=controlled.n_documents,
        truncated=controlled.n_truncated,
        selection=selection,
        interval=controlled.index,
        preference=short_verdict(method, model.spec),
    )
    return with_control(provenance, controlled.control)


def of_run(
    run: TrecRun, evaluation: Evaluation, dataset: str, n_documents: int, selection: str = ""
) -> Provenance:
    """Provenance of measures of another program's run."""
    return Provenance(
        poslens=__version__,
        model=run.name,
        method="ranking as given, the best 100 of each query",
        dataset=dataset,
        dataset_files=dataset_digest(dataset),
        model_source=f"run {run.file}, digest {run.digest}",
        n_queries=evaluation.n,
        n_documents=n_documents,
        selection=selection,
        interval=resampled_of(evaluation.estimates.items()),
    )


def of_published(published: PublishedCurves, *, band: bool = False) -> Provenance:
    """Provenance of published curves: others computed them, PosLens averaged them. `band` says
    whether it is that of a figure with their bands."""
    return Provenance(
        poslens=__version__,
        model=published.model,
        method="curves as published, mean and standard deviation (ddof=1)",
        dataset=published.source,
        model_source="published",
        n_pairs=published.n,
        band=f"{BANDS[1]} over pairs" if band else "",
    )


def of_model(
    model: ModelIdentity,
    method: Method | str,
    dataset: str,
    *,
    n_pairs: int | None = None,
    n_queries: int | None = None,
    n_documents: int | None = None,
    truncated: int | None = None,
    selection: str | Iterable[str] = "",
    units: str = "",
    control: str = "",
    interval: Estimate | str | None = None,
    preference: str = "",
) -> Provenance:
    """Provenance of one model's numbers; what is unknown or does not apply is omitted.

    `interval` is a number whose interval records what was resampled, or a text that names it.
    Several parts of `selection` are joined. `preference` is the attribution method's own preference
    for a position (`short_verdict`)."""
    spec = model.spec
    return Provenance(
        poslens=__version__,
        model=spec.name,
        method=str(method),
        dataset=dataset,
        dataset_files=dataset_digest(dataset),
        model_source=spec.origin,
        weights=model.weights,
        n_pairs=n_pairs,
        n_queries=n_queries,
        n_documents=n_documents,
        max_length=limits.context_limit(spec),
        # Without knowing what the model reads, the number of truncated texts is unknown too.
        truncated=None if limits.unknown(spec) else truncated,
        precision=precision_of(model),
        prompts=spec.prompts,
        selection=selection if isinstance(selection, str) else ", ".join(filter(None, selection)),
        units=units,
        control=control,
        interval=interval if isinstance(interval, str) else _resampled(interval),
        method_preference=preference,
    )


def of_data(dataset: str, method: str, *, n_queries: int) -> Provenance:
    """Provenance of numbers about a data set alone, without a model."""
    return Provenance(
        poslens=__version__,
        model="none",
        method=method,
        dataset=dataset,
        dataset_files=dataset_digest(dataset),
        n_queries=n_queries,
    )


def removed_units(test: Faithfulness | FaithfulnessSummary) -> str:
    """The units that the test removed, and what they were sorted by, as text."""
    unit, entry = test.parameters.unit, METHODS.get(test.method.name)
    if entry is None:
        return f"{unit}s, by position"
    return "tokens" if unit == "token" else f"{unit}s, by the {entry.aggregate} of their tokens"


def _resampled(number: Estimate | None) -> str:
    """The items resampled for an interval, as text; empty without an interval."""
    return "" if number is None else resampled_of([("", number)])


def resampled_of(estimates: Iterable[tuple[str, Estimate]], one_sided: Collection[str] = ()) -> str:
    """How the intervals of numbers, each with its name, were computed: first as most are, by a
    two-sided bootstrap if there is one, then the others with the names of their numbers. Those of
    `one_sided` numbers begin at 0 unless they come from a formula."""
    sizes: dict[tuple[str, str, str], list[int]] = {}
    for name, number in estimates:
        if number.interval is not None and (number.formula or number.n_resampled):
            sizes.setdefault((name, number.formula, number.resampled), []).append(
                number.n_resampled
            )
    texts: dict[str, list[str]] = {}
    usual = ""
    for (name, formula, units), resampled in sizes.items():
        least, most = min(resampled), max(resampled)
        over = f"{least:,} {units}" if least == most else f"{least:,} to {most:,} {units}"
        if formula:
            text = f"95%, {formula} for {over}" if most else f"95%, {formula}"
        elif name in one_sided:
            text = f"95%, one-sided from 0, bootstrap over {over}"
        else:
            text = f"95%, bootstrap over {over}"
            usual = usual or text
        texts.setdefault(text, []).append(name)
    usual = usual or next(iter(texts), "")
    # A number of several rows can have several kinds of intervals.
    all_names = [name for names in texts.values() for name in names]
    named = (
        listed([f"{name} (some rows)" if all_names.count(name) > 1 else name for name in names])
        + f": {text}"
        for text, names in texts.items()
        if text != usual
    )
    return "; ".join(filter(None, [usual, *named]))


def resampling(n: int, what: str = "documents") -> str:
    """A bootstrap interval over `n` documents (or other units), as text."""
    return f"95%, bootstrap over {n:,} {what}"
